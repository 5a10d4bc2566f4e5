// A publication's plan in words: who is protected, by how much, and the parts of its cap.

import { amount, count, h, protectedOne, range, table } from "./dom.js";

const CURRENCY = { epsilon: "ε", rho: "ρ" };
const percent = (part) => `${(100 * part).toLocaleString("en", { maximumFractionDigits: 1 })} %`;
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function factor(epsilon) {
  const power = `e to the power of ε = ${amount(epsilon)}`;
  const value = Math.exp(epsilon);
  return Number.isFinite(value) ? [h("strong", {}, amount(value)), ` (${power})`] : [power];
}

/** Returns how many times a charge to a record counts for its unit; 1 without units. */
export function factorOf(terms) {
  const [over, under = 1] = (terms?.factor ?? "1").split("/").map(Number);
  return over / under;
}

/** A plan, as `GET /v1/publications/{publication}` tells it. */
export function explained({ plan, start, privacy, publish_delay }) {
  const { guarantee, lifetime, declassification } = plan;
  const { unit: terms } = guarantee; // of a stream with units
  const unit = CURRENCY[guarantee.currency];
  const one = protectedOne(terms);
  const parts = (lifetime?.parts ?? []).map((part) => ({
    ...part,
    part: part[guarantee.currency] / guarantee.capacity,
  }));
  return [
    h(
      "p",
      {},
      terms
        ? `Take all records of any one unit of the stream, such as a person, of which ${count(terms.max_records)} count, and put others in their place, or none. `
        : "Take any one record of the stream and put another in its place, or none. ",
      "Whatever this publication ever publishes, for as long as it runs, ",
      "is then almost as likely as before: within a factor of ",
      ...factor(privacy.epsilon),
      privacy.delta > 0 ? [", but for a probability of ", h("strong", {}, amount(privacy.delta)), " (δ)"] : null,
      ". ",
      `All of that is reserved on every ${one} it may read, before the first release.`,
    ),
    privacy.delta > 0 &&
      h(
        "p",
        { class: "muted" },
        `Its noise is Gaussian, so what it charges is counted in ρ, which adds up exactly. Altogether ρ = ${amount(guarantee.capacity)} implies that ε at that δ.`,
      ),
    lifetime &&
      h(
        "p",
        {},
        `The record that all its releases for ever charge most is number ${count(start + lifetime.record)}`,
        terms
          ? `, if it counts. In its whole life its unit pays for it at most ${unit} ${amount(lifetime[guarantee.currency])} of ${amount(guarantee.capacity)}, ${amount(factorOf(terms))} times its charges, since ${count(terms.max_records)} records of the unit may count`
          : `. In its whole life it pays ${unit} ${amount(lifetime[guarantee.currency])} of at most ${amount(guarantee.capacity)}`,
        lifetime.note ? ` (${lifetime.note})` : "",
        parts.length ? ", for these:" : ".",
      ),
    parts.length > 0 && shares(parts),
    parts.length > 0 &&
      table(
        terms ? "Payments of the unit of the record that pays most" : "Payments of the record that pays most",
        [
          { title: "Read by", wide: true },
          { title: "Times", number: true },
          { title: `${unit} in all`, number: true },
          { title: "Part of the cap", number: true },
        ],
        parts.map((part) => [
          sentence(part.what),
          part.fits === null ? "for ever" : count(part.fits),
          amount(part[guarantee.currency]),
          percent(part.part),
        ]),
      ),
    plan.fits?.length > 0 && h("h3", {}, "Fits, and when"),
    plan.fits?.length > 0 &&
      table(
        "Kinds of fits",
        [
          { title: "Fit" },
          { title: "When", wide: true },
          { title: "Records", number: true },
          { title: terms ? `${unit} to each record` : `${unit} each`, number: true },
          { title: "Noise scale", number: true },
          { title: "Expected length", number: true },
        ],
        plan.fits.map((fit) => [
          sentence(fit.what),
          fit.when,
          count(fit.records),
          amount(fit.charge),
          fit.noise.scale === null ? `at least ${amount(fit.at_least?.scale)}` : amount(fit.noise.scale),
          amount(fit.noise.expected_norm),
        ]),
      ),
    publish_delay > 0
      ? h(
          "p",
          {},
          `Releases appear at public times: every ${amount(publish_delay)} s, at least so long after the last record that they needed was numbered. So their times do not tell how long a fit took.`,
        )
      : plan.fits?.length > 0 &&
          h("p", {}, "A release appears as soon as its fit is ready: its time tells how long that took, and so of its records."),
    declassification &&
      h(
        "p",
        {},
        h("strong", {}, "Records expire. "),
        sentence(declassification.when),
        "; ",
        declassification.note,
        ".",
      ),
    h(
      "details",
      {},
      h("summary", {}, "The whole plan, as the service keeps it"),
      h("pre", { tabindex: "0" }, h("code", {}, JSON.stringify(plan, null, 1))),
    ),
  ];
}

/** Parts of a cap, side by side. */
function shares(parts) {
  const bar = h(
    "div",
    {
      class: "shares",
      role: "img",
      "aria-label": parts.map((part) => `${percent(part.part)}: ${part.what}`).join("; "),
    },
    parts.map(() => h("span")),
  );
  parts.forEach((part, index) => {
    bar.children[index].style.flexGrow = part.part;
    bar.children[index].title = part.what;
  });
  return bar;
}

/** One release in numbers, and what it stands for. */
export function described(release) {
  const { charge, noise, model } = release;
  const paid = charge.rho === null ? `ε ${amount(charge.epsilon)}` : `ρ ${amount(charge.rho)}`;
  return [
    [
      "Role",
      {
        model: "model: what it says is its own",
        base: "base: later fits start from it",
        link: "link: the next fit starts from it",
      }[release.role] ?? release.role,
    ],
    ["Has seen", `records up to ${count(release.time)}`],
    ["Stands for records", range(release.window)],
    ["Its fit read records", range(release.fit)],
    ["Kept near version", release.parent === null ? "none" : count(release.parent)],
    ["Noise", `${noise.distribution?.replaceAll("_", " ") ?? "–"}, scale ${amount(noise.scale)}`],
    ["Charged", `${paid} to each record it read (charge ${count(charge.id)} of the stream)`],
    [
      "Parameters",
      `${release.parameters.shape.join(" × ")}${model.loss ? `, ${model.loss.replaceAll("_", " ")}` : ""}`,
    ],
    ["Published", new Date(release.published_at).toLocaleString("en", { dateStyle: "medium", timeStyle: "medium" })],
  ];
}
