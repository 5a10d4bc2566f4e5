// One number of a record that somebody labels.

import { amount, h } from "./dom.js";
import { mappedColumns, sent } from "./names.js";

const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 5, useGrouping: false });
const number = (value) =>
  (value !== 0 && Math.abs(value) < 1e-3 ? amount(value) : digits.format(value)).replace("-", "−");

/** A number as it was sent, if the feature map can be inverted, with a bar in proportion to the largest. */
export function feature(stream, index, value, largest) {
  const [column, before] = [mappedColumns(stream)?.[index], sent(stream)];
  const bar = h("span", { class: value < 0 ? "bar below" : "bar" });
  bar.style.width = `${largest > 0 ? (50 * Math.abs(value)) / largest : 0}%`;
  const unit = before && column?.unit ? ` ${column.unit}` : "";
  return h(
    "div",
    {},
    h("dt", {}, column?.name ?? String(index)),
    h("dd", { title: String(value) }, number(before ? before(value, index) : value), unit, bar),
  );
}
