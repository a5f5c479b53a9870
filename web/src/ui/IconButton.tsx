import type { ComponentChildren } from "preact";
import { Icon, type IconName } from "./Icon";

interface Props {
  icon: IconName;
  /** What the button does, for those who do not see it. */
  label: string;
  /** The tooltip; the label if it is left out. */
  title?: string;
  onClick: () => void;
  children?: ComponentChildren;
}

/** A small button without a frame. */
export function IconButton({ icon, label, title = label, onClick, children }: Props) {
  return (
    <button type="button" class="quiet" aria-label={label} title={title} onClick={onClick}>
      <Icon name={icon} />
      {children}
    </button>
  );
}
