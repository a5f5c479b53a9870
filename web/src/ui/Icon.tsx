/** Icons, drawn with strokes on a grid of 16. */

const PATHS = {
  menu: "M2 4h12M2 8h12M2 12h12",
  plus: "M8 3v10M3 8h10",
  send: "M8 13V3M3.5 7.5 8 3l4.5 4.5",
  stop: "M4.5 4.5h7v7h-7z",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  check: "m3 8.5 3.2 3.2L13 5",
  retry: "M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3",
  edit: "m3 13 .8-3L10.5 3.3 12.7 5.5 6 12.2zM9 5l2 2",
  trash: "M3 4.5h10M6.5 4V2.5h3V4M4.5 4.5l.6 9h5.8l.6-9",
  download: "M8 2.5v8M4.5 7.5 8 11l3.5-3.5M3 13.5h10",
  attach: "m12.5 7.5-4.7 4.7a2.7 2.7 0 0 1-3.8-3.8l5-5a1.8 1.8 0 0 1 2.6 2.6l-4.7 4.7a.9.9 0 0 1-1.3-1.3l4.2-4.2",
  sliders: "M2 5h7M12 5h2M9 3.5v3h3v-3zM2 11h2M7 11h7M4 9.5v3h3v-3z",
  columns: "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
  close: "m4 4 8 8M12 4l-8 8",
  sun: "M8 5.3a2.7 2.7 0 1 0 0 5.4 2.7 2.7 0 0 0 0-5.4M8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  auto: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  file: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
