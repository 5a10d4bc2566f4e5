import { root } from "./api.js";

// Elements, and how numbers and times are written. Text becomes text, never markup.

/** An element. Attributes that are null or false are left out; `on…` are listeners; children may be nested lists. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : name === "href" ? addressed(value) : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Returns an address of this service with the path that a proxy puts before it; any other address unchanged. */
const addressed = (address) => (address.startsWith("/") ? root + address : address);

export const $ = (id) => document.getElementById(id);

const FOCUSED = "a, button, summary";
/**
 * Replaces all children if anything has changed. The focus stays at its link, button or summary, and
 * open details stay open.
 */
export function replace(container, ...children) {
  const holder = h(container.tagName, {}, ...children);
  const before = container.querySelectorAll("details");
  holder.querySelectorAll("details").forEach((details, index) => details.toggleAttribute("open", before[index]?.open ?? false));
  if (holder.innerHTML === container.innerHTML) return;
  const at = container.contains(document.activeElement) ? document.activeElement : null;
  const same = at && [...container.querySelectorAll(FOCUSED)].indexOf(at);
  container.replaceChildren(...holder.childNodes);
  if (at) container.querySelectorAll(FOCUSED)[same]?.focus({ preventScroll: true });
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (number) => whole.format(number);
export const counted = (number, what, many = `${what}s`) => `${count(number)} ${number === 1 ? what : many}`;

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";
/** Returns a number with three significant digits; very small or large ones as a power of ten. */
export function amount(number) {
  if (number === null || number === undefined) return "–";
  if (number === 0) return "0";
  if (number === Infinity) return "infinity";
  const size = Math.abs(number);
  if (size >= 1e-3 && size < 1e6)
    return Number(number.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 });
  const [digits, power] = number.toExponential(2).split("e");
  const raised = [...String(Math.abs(power))].map((digit) => SUPERSCRIPT[digit]).join("");
  const factor = Number(digits);
  return `${factor === 1 ? "" : `${factor} × `}10${power < 0 ? "⁻" : ""}${raised}`;
}

/** (ε, δ), or ε alone where δ is 0. */
export const loss = ({ epsilon, delta }) => `ε ${amount(epsilon)}${delta > 0 ? `, δ ${amount(delta)}` : ""}`;
/** Returns a loss in the currency of the stream's budget: (ε, δ), or ρ. */
export const held = (of) => (of.rho === undefined ? loss(of) : `ρ ${amount(of.rho)}`);

/** Returns what a stream protects, a record or a unit, by its setting `unit`. */
export const protectedOne = (unit) => (unit ? "unit" : "record");

/** Returns records [start, end) as a text that includes the last one. */
export const range = ({ start, end }) => (end - start > 1 ? `${count(start)} – ${count(end - 1)}` : count(start));

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "long" });
const UNITS = [
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
  ["second", 1],
];

function ago(time) {
  const seconds = Math.min(0, (time - Date.now()) / 1000);
  if (seconds > -5) return "just now";
  const [unit, size] = UNITS.find(([, size]) => -seconds >= size);
  return relative.format(Math.trunc(seconds / size), unit);
}

/** A time as how long ago it was; `keepTime` updates it. */
export function when(text) {
  const time = new Date(text);
  return h(
    "time",
    { datetime: text, title: time.toLocaleString("en", { dateStyle: "medium", timeStyle: "medium" }) },
    ago(time),
  );
}

export function keepTime() {
  setInterval(() => {
    for (const time of document.querySelectorAll("time")) {
      const text = ago(new Date(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  }, 5000);
}

const STATES = {
  running: ["good", "Running"],
  stopped: ["plain", "Stopped"],
  halted: ["bad", "Halted"],
  distrusted: ["bad", "Not trusted"],
  receiving: ["good", "Receiving"],
  waiting: ["plain", "Waiting"],
  done: ["good", "Done"],
  failed: ["bad", "Failed"],
  cancelled: ["plain", "Cancelled"],
};
export const stated = (state) => STATES[state]?.[1] ?? state;
export const pill = (state) => h("span", { class: `pill ${STATES[state]?.[0] ?? "plain"}` }, stated(state));

/** A link to the page that answers a publication's open label requests, for keys that may. */
export const toLabel = ({ name, stream, labels }) =>
  labels?.waiting > 0 &&
  h("a", { class: "pill warn", href: pageOf(`${name}/label`, stream) }, `${count(labels.waiting)} to label`);

/** The address of a publication's page, with the stream, so that the page notices a publication of another stream. */
export const pageOf = (name, stream) => `/dashboard/publications/${name}?stream=${stream}`;
export const toPublication = (name, stream) => h("a", { href: pageOf(name, stream) }, name);

/** A notice of an error, and what to do. */
export const notice = (kind, title, ...body) =>
  h("div", { class: `notice ${kind}` }, h("strong", {}, title), ...body.map((text) => h("p", {}, text)));

/** A bar of the spent and the reserved parts of a whole. */
export function meter(spent, reserved, whole, label) {
  const bar = h(
    "div",
    { class: "meter", role: "img", "aria-label": label },
    h("span", { class: "reserved" }),
    h("span", { class: "spent" }),
  );
  [reserved, spent].forEach((part, index) => {
    bar.children[index].style.width = `${whole > 0 ? Math.min(100, (100 * part) / whole) : 0}%`;
  });
  return bar;
}

/** A meter of a stream's ε or ρ, with numbers: `spent` and `reserved` of the record that has most. */
export const budgetMeter = ({ spent, reserved, budget }) => {
  const [unit, part] = budget.rho === undefined ? ["ε", "epsilon"] : ["ρ", "rho"];
  return meter(
    spent[part],
    reserved[part],
    budget[part],
    `Of ${unit} ${amount(budget[part])}, ${amount(reserved[part])} is reserved and ${amount(spent[part])} is spent`,
  );
};
export const budgetFacts = ({ spent, reserved, budget, unit }) =>
  [
    [`Used, the most by any ${protectedOne(unit)}`, spent, "spent"],
    ["Reserved", reserved, "reserved"],
    ["Budget", budget, "whole"],
  ].map(([name, told, kind]) =>
    fact(
      h("span", { class: `swatch ${kind}` }, name),
      `ε ${amount(told.epsilon)}`,
      told.delta > 0 && h("small", {}, `δ ${amount(told.delta)}`),
      told.rho !== undefined && h("small", {}, `ρ ${amount(told.rho)}`),
    ),
  );

export const fact = (name, ...value) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, ...value));

const MOST_ON_A_PHONE = 3;

/** A table that scrolls by itself where there is no room. Columns are `number`s, `extra` (not on a phone) or `wide`.
 *
 * On a phone the rows of a table of many columns become blocks, with the column's title before each value.
 */
export function table(caption, columns, rows) {
  const many = columns.filter((column) => !column.extra).length > MOST_ON_A_PHONE;
  const kind = (index) => ["number", "extra", "wide"].filter((property) => columns[index][property]).join(" ") || null;
  return h(
    "div",
    { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h(
      "table",
      { class: many && "many" },
      h("caption", { class: "unseen" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((column, index) => h("th", { scope: "col", class: kind(index) }, column.title)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            row.map((cell, index) =>
              h("td", { class: kind(index), "data-title": many && columns[index].title }, cell),
            ),
          ),
        ),
      ),
    ),
  );
}
