/** Patterns of the parts, so that they differ without colours too. */
export function Patterns({ id }: { id: string }) {
  return (
    <defs>
      <pattern id={`${id}-sinks`} width="5" height="5" patternUnits="userSpaceOnUse">
        <path class="pattern" d="M0 0l5 5M5 0l-5 5" />
      </pattern>
      <pattern id={`${id}-selected`} width="7" height="7" patternUnits="userSpaceOnUse">
        <path class="pattern" d="M-1 8l9-9M-2 2l4-4M5 9l4-4" />
      </pattern>
      <pattern id={`${id}-prompt`} width="7" height="7" patternUnits="userSpaceOnUse">
        <path class="pattern" d="M-1 8l9-9M-2 2l4-4M5 9l4-4" />
      </pattern>
      <pattern id={`${id}-unused`} width="6" height="6" patternUnits="userSpaceOnUse">
        <circle class="pattern-dot" cx="3" cy="3" r="0.8" />
      </pattern>
    </defs>
  );
}
