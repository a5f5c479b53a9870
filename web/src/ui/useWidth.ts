import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

/** Return a reference to an element and its width in pixels. */
export function useWidth<E extends Element>(start = 400): [RefObject<E | null>, number] {
  const element = useRef<E>(null);
  const [width, setWidth] = useState(start);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => {
      if (entry && entry.contentRect.width > 0) setWidth(Math.round(entry.contentRect.width));
    });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}
