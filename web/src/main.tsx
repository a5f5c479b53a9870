import { render } from "preact";
import { App } from "./App";
import "./styles/base.css";
import "./styles/chat.css";
import "./styles/memory.css";
import "./styles/dashboard.css";
import { follow } from "./api/live";
import { startTheme } from "./theme";

const root = document.getElementById("app");
if (root) {
  startTheme();
  follow();
  render(<App />, root);
  performance.mark("shown");
}
