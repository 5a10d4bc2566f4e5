// A long list, newest first, of which only one page is loaded at a time.

import { get } from "./api.js";
import { $, count, h, replace, table } from "./dom.js";

const ON_A_PAGE = 20;

/**
 * Shows a list in `#id`, with `#id-said` beside it and buttons below; returns a function that reloads the page.
 * list: `path`, and `key`, by which the next page is asked for; `columns` and `row(item)` of its table, `caption`,
 * and what it says if it is `empty`.
 */
export function paged(id, { path, key, columns, row, caption, empty }, failed) {
  const turned = []; // the last key of each page before
  let shown = []; // the keys on this one, so that new rows are marked
  const button = (text, turn) =>
    h(
      "button",
      {
        type: "button",
        onclick: () => {
          turn();
          look().catch(failed);
        },
      },
      text,
    );
  const newer = button("Newer", () => turned.pop());
  const older = button("Older", () => turned.at(-1) !== shown.at(-1) && turned.push(shown.at(-1))); // once a page
  const [holder, buttons] = [h("div"), h("div", { class: "row" }, newer, older)];
  $(id).replaceChildren(holder, buttons);

  async function look() {
    const last = turned.at(-1);
    const before = turned.length ? `&before=${last}` : "";
    const found = (await get(`${path}?limit=${ON_A_PAGE + 1}${before}`)).items;
    if (last !== turned.at(-1)) return; // somebody turned the page meanwhile, and that look shows it
    const items = found.slice(0, ON_A_PAGE);
    const newest = Math.max(...shown);
    replace(holder, items.length ? table(caption, columns, items.map(row)) : h("p", { class: "muted" }, empty));
    holder
      .querySelectorAll("tbody tr")
      .forEach((row, index) =>
        row.classList.toggle("new", shown.length > 0 && turned.length === 0 && items[index][key] > newest),
      );
    shown = items.map((item) => item[key]);
    newer.disabled = turned.length === 0;
    older.disabled = found.length <= ON_A_PAGE;
    buttons.hidden = newer.disabled && older.disabled;
    $(`${id}-said`).textContent = items.length ? `${count(shown.at(-1))} – ${count(shown[0])}` : "";
  }
  return look;
}
