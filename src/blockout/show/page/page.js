"use strict";
(() => {
  const said = JSON.parse(document.getElementById("said").textContent);
  const root = document.documentElement;
  const plots = [...document.querySelectorAll(".plot")];
  const touched = matchMedia("(pointer: coarse)").matches;
  const PAPER_WIDTH = 690; // of a printed page, in pixels
  const UNWANTED = ["lasso2d", "select2d", "sendChartToCloud", "sendDataToCloud"]; // of Plotly's buttons

  // --- remembering, where the browser lets a page from disk do so -------------------------------

  const memory = {
    get: (key) => { try { return sessionStorage.getItem(key); } catch { return null; } },
    set: (key, value) => { try { sessionStorage.setItem(key, value); } catch { /* forgotten */ } },
  };

  // --- light and dark ---------------------------------------------------------------------------

  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : wantsDark.matches);

  function colours(dark) {
    return dark
      ? { ink: "#e6eaed", ground: "#1e242a", line: "#2e373f", mark: "#ffffff" }
      : { ink: "#1b2126", ground: "#ffffff", line: "#dfe4e8", mark: "#000000" };
  }

  function template(dark) {
    const { ink, ground, line } = colours(dark);
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, automargin: true };
    const control = { bgcolor: ground, bordercolor: line, font: { color: ink } };
    return {
      layout: {
        font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        colorway: said.palette, xaxis: axis, yaxis: axis,
        title: { x: 0, xref: "container", xanchor: "left", yref: "container", automargin: true, font: { size: innerWidth < 640 ? 13 : 15 } },
        margin: { l: 56, r: 16, t: 36, b: 48 },
        hoverlabel: { ...control, align: "left", namelength: -1 },
        legend: { bgcolor: "rgba(0,0,0,0)" },
      },
    };
  }

  function recolour(dark = isDark()) {
    for (const plot of plots) {
      if (plot.drawn) Plotly.relayout(plot, { template: template(dark) });
    }
    markAll();
  }

  root.dataset.theme = memory.get("theme") || "";
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    memory.set("theme", root.dataset.theme);
    recolour();
  });
  wantsDark.addEventListener("change", () => recolour());

  function element(tag, text, kind) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    made.dir = "auto";
    return made;
  }

  // --- drawing, when a figure comes near --------------------------------------------------------

  /** Pixels below which a figure is scrolled instead of squeezed: what its layout says under
   * meta.least_width, or more for panels side by side and for tables of cells. */
  function leastWidth(data, layout) {
    if (layout.meta && layout.meta.least_width) return layout.meta.least_width;
    const starts = Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key))
      .map((key) => Math.round(100 * ((layout[key].domain || [0])[0])));
    const panels = new Set(starts).size;
    if (panels > 1) return 270 * panels;
    return data.some((trace) => trace.type === "heatmap") ? 560 : 0;
  }

  /** Buttons and sliders of a layout as elements of the page: Plotly's own know no keyboard. */
  function addControls(plot, layout) {
    const apply = ({ method, args }) => Plotly[method](plot, ...args);
    for (const menu of layout.updatemenus || []) {
      const row = element("div", undefined, "controls");
      const buttons = menu.buttons.map((choice) => {
        const button = element("button", choice.label);
        button.type = "button";
        button.addEventListener("click", () => {
          buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
          apply(choice);
        });
        return button;
      });
      buttons[0].setAttribute("aria-pressed", "true");
      row.append(...buttons);
      plot.before(row);
    }
    for (const { steps, active, currentvalue } of layout.sliders || []) {
      const row = element("label", undefined, "controls"), text = element("span"), range = element("input");
      Object.assign(range, { type: "range", min: 0, max: steps.length - 1, value: active });
      const tell = () => { text.textContent = currentvalue.prefix + steps[range.value].label; };
      range.addEventListener("input", () => { tell(); apply(steps[range.value]); });
      tell();
      row.append(text, range);
      plot.after(row);
    }
  }

  function draw(plot) {
    if (plot.drawn) return plot.drawn;
    const { data, layout } = JSON.parse(plot.closest("figure").querySelector("script").textContent);
    plot.style.minWidth = `${leastWidth(data, layout)}px`;
    plot.base = { shapes: layout.shapes || [], annotations: layout.annotations || [] };
    addControls(plot, layout);
    const ready = {
      ...layout, updatemenus: [], sliders: [], width: undefined, autosize: true, template: template(isDark()),
    };
    if (touched && layout.dragmode === undefined) ready.dragmode = false; // fingers scroll the page
    const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: UNWANTED };
    plot.drawn = Plotly.newPlot(plot, data, ready, settings).then(() => {
      plot.on("plotly_click", clicked);
      for (const change of ["plotly_restyle", "plotly_update", "plotly_animated"]) {
        plot.on(change, () => plot.marking || mark(plot));
      }
      plot.querySelectorAll(".modebar-btn").forEach((button) => { button.tabIndex = -1; });
      plot.dataset.drawn = "yes";
      return mark(plot);
    });
    return plot.drawn;
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "500px 0px" });
  plots.forEach((plot) => near.observe(plot));

  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
    document.querySelectorAll("img[loading=lazy]").forEach((image) => { image.loading = "eager"; });
    for (const plot of plots) {
      draw(plot);
      Plotly.relayout(plot, { template: template(false), width: PAPER_WIDTH });
    }
  });
  addEventListener("afterprint", () => {
    for (const plot of plots) {
      Plotly.relayout(plot, { template: template(isDark()), width: null, autosize: true });
    }
  });

  // --- a class, marked in all figures -----------------------------------------------------------

  let chosen = null; // index of a class

  /** Whether a trace shows the classes that can be searched for, not those of another data set. */
  const showsClasses = (trace) => said.classes && trace.meta && trace.meta.classes === said.classes.list;

  const classAt = (trace, i) => trace.customdata[i][0];

  function clicked({ points: [point] }) {
    if (showsClasses(point.data)) choose(classAt(point.data, point.pointNumber));
  }

  /** The nearest classes of the chosen one, in the run of that name. */
  function neighbours(name) {
    const run = said.classes.runs.find((r) => r.name === name && r.near);
    return chosen === null || !run ? [] : run.near[chosen].classes.slice(0, 5);
  }

  /** A ring of so many pixels around a point. */
  function ring(trace, i, radius, line) {
    return {
      name: "mark", type: "circle", xref: trace.xaxis || "x", yref: trace.yaxis || "y", layer: "above",
      xsizemode: "pixel", ysizemode: "pixel", xanchor: trace.x[i], yanchor: trace.y[i],
      x0: -radius, x1: radius, y0: -radius, y1: radius, line,
    };
  }

  function label(trace, i, colour) {
    return {
      name: "mark", text: plain(said.classes.names[chosen]), xref: trace.xaxis || "x", yref: trace.yaxis || "y",
      x: trace.x[i], y: trace.y[i], ax: 0, ay: -30, arrowhead: 0, arrowwidth: 1.5,
      arrowcolor: colour, standoff: 9, bgcolor: colours(isDark()).ground, bordercolor: colour, borderpad: 2,
    };
  }

  /** Text as Plotly shows it: as it is, without its own kind of tags. */
  function plain(text) {
    const short = text.length > 40 ? `${text.slice(0, 39)}…` : text;
    return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function marksOf(trace) {
    const { mark: colour } = colours(isDark());
    const shapes = [], labels = [], others = neighbours(trace.meta.run);
    for (let i = 0; i < trace.customdata.length; i++) {
      const index = classAt(trace, i);
      if (index === chosen) {
        shapes.push(ring(trace, i, 9, { color: colour, width: 3 }));
        if (!labels.length) labels.push(label(trace, i, colour));
      } else if (others.includes(index)) {
        shapes.push(ring(trace, i, 7, { color: colour, width: 1.5, dash: "dot" }));
      }
    }
    return { shapes, labels };
  }

  async function mark(plot) {
    if (!plot.drawn || !plot._fullData) return;
    const traces = plot._fullData.filter((t) => showsClasses(t) && t.visible === true && t._module && t.xaxis);
    if (!traces.length) return;
    const shapes = [...plot.base.shapes], annotations = [...plot.base.annotations];
    if (chosen !== null) {
      for (const trace of traces) {
        const found = marksOf(trace);
        shapes.push(...found.shapes);
        annotations.push(...found.labels);
      }
    }
    plot.marking = true;
    plot.dataset.marks = String(shapes.length - plot.base.shapes.length);
    await Plotly.relayout(plot, { shapes, annotations });
    plot.marking = false;
  }

  /** Names of classes that stand in the text as buttons, with images in them where there are some. */
  const named = (index) => [...document.querySelectorAll("main [data-class]")]
    .filter((button) => nameIn(button) === said.classes.names[index]);
  const nameIn = (button) => button.querySelector("bdi").textContent;

  /** The class whose name on an axis is at this place; -1 without. Plotly's drawings hear no mouse. */
  function onAxis(event) {
    const plot = event.target.closest(".plot"), { clientX: x, clientY: y } = event;
    const name = plot && [...plot.querySelectorAll("svg a")].find((a) => {
      const { left, right, top, bottom } = a.getBoundingClientRect();
      return left <= x && x <= right && top <= y && y <= bottom;
    });
    const [list, index] = name ? name.style.getPropertyValue("--class").trim().split("-") : [];
    return Number(list) === said.classes.list ? Number(index) : -1;
  }

  function markAll() {
    document.querySelectorAll("main .marked").forEach((button) => button.classList.remove("marked"));
    if (chosen !== null) named(chosen).forEach((button) => button.classList.add("marked"));
    plots.forEach((plot) => mark(plot));
  }

  // --- searching --------------------------------------------------------------------------------

  const query = document.getElementById("query"), found = document.getElementById("found");

  function classButton(index, detail) {
    const button = element("button", said.classes.names[index] + (detail ? ` · ${detail}` : ""), "class");
    button.type = "button";
    button.addEventListener("click", () => choose(index));
    return button;
  }

  function line(...parts) {
    const made = element("p");
    made.append(...parts);
    return made;
  }

  function branches(run) {
    const dots = run.branches[chosen].map((cluster) => {
      const dot = element("span", String(cluster), "branch");
      dot.style.background = said.palette[cluster % said.palette.length];
      return dot;
    });
    return line("Branches: ", ...(dots.length ? dots : ["none"]), ` of ${run.clusters}`);
  }

  function nearest(run) {
    const { classes, alike, more } = run.near[chosen];
    if (alike.length && alike.every((value) => value > 0.9999)) {
      const same = classes.map((index) => classButton(index));
      return line("In the same branches: ", ...same, more > 0 ? ` and ${more} more` : "");
    }
    const near = classes.map((index, i) => classButton(index, alike[i].toFixed(2)));
    const rest = more > 0 ? ` and ${more} more as near as the last` : "";
    return line("Nearest by branches: ", ...(near.length ? near : ["none"]), rest);
  }

  function facts(run) {
    const parts = [];
    if (run.accuracy && run.accuracy[chosen] !== null) {
      parts.push(line(`${run.accuracy[chosen]} % of its test images are right`));
    }
    if (run.taken_for && run.taken_for[chosen].length) {
      const others = run.taken_for[chosen].map(([index, share]) => classButton(index, `${share} %`));
      parts.push(line("Most often taken for: ", ...others));
    }
    if (run.branches) parts.push(branches(run));
    if (run.near) parts.push(nearest(run));
    return parts;
  }

  // --- from figure to figure ----------------------------------------------------------------------

  let visited = -1; // place in `placesOf` of what was shown last

  /** Where the chosen class can be seen, from the top: in figures, and as a name in the text. */
  function placesOf(index) {
    const list = `"classes":${said.classes.list}`;
    const shown = plots.filter((plot) => plot.closest("figure").querySelector("script").textContent.includes(list));
    return [...document.querySelectorAll("main section")].flatMap((section) => {
      const part = shown.find((plot) => section.contains(plot)) || named(index).find((b) => section.contains(b));
      return part && section.id !== "summary" ? [{ part, title: section.querySelector("h2").textContent }] : [];
    });
  }

  /** Brings a place into view: of a figure, the mark in it. */
  async function goTo(place) {
    const { part } = placesOf(chosen)[place];
    visited = place;
    for (let around = part.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
    if (part.matches(".plot")) {
      part.scrollIntoView({ block: "nearest", behavior: "instant" });
      await draw(part);
      await mark(part);
    }
    const target = part.querySelector(".annotation[data-index]:last-of-type") || part;
    target.scrollIntoView({ block: "center", inline: "center" });
    found.querySelectorAll(".place").forEach((button, i) => button.setAttribute("aria-pressed", String(i === place)));
  }

  function goToNext() {
    const count = placesOf(chosen).length;
    if (count) goTo((visited + 1) % count);
  }

  /** A button for each place; Enter in the search goes from one to the next. */
  function places() {
    const buttons = placesOf(chosen).map(({ title }, i) => {
      const button = element("button", title, "class place");
      button.type = "button";
      button.addEventListener("click", () => goTo(i));
      return button;
    });
    return buttons.length ? [line("See it in: ", ...buttons)] : [];
  }

  function closing() {
    const close = element("button", "×", "close");
    close.type = "button";
    close.setAttribute("aria-label", "Close, and mark nothing");
    close.addEventListener("click", () => { query.value = ""; choose(null); query.focus(); });
    return close;
  }

  function show() {
    found.replaceChildren(closing(), element("h2", said.classes.names[chosen]));
    const [image] = named(chosen).map((button) => button.querySelector("img")).filter(Boolean);
    if (image) {
      const copy = image.cloneNode();
      copy.loading = "eager";
      found.append(copy);
    }
    found.append(...places());
    for (const run of said.classes.runs) {
      if (said.classes.runs.length > 1) found.append(element("h3", run.name));
      found.append(...facts(run));
    }
    found.hidden = false;
  }

  function choose(index) {
    chosen = index;
    visited = -1;
    if (index === null) {
      found.hidden = true;
    } else {
      query.value = said.classes.names[index];
      show();
    }
    markAll();
  }

  /** The class of this name, or the first whose name begins with the text, or holds it. */
  function bestMatch(text) {
    const wanted = text.trim().toLowerCase(), names = said.classes.names.map((name) => name.toLowerCase());
    if (!wanted) return null;
    for (const fits of [(n) => n.trim() === wanted, (n) => n.startsWith(wanted), (n) => n.includes(wanted)]) {
      const index = names.findIndex(fits);
      if (index >= 0) return index;
    }
    return null;
  }

  /** The class that shares most letters with the text, for who has mistyped; null if few. */
  function mostLike(text) {
    const letters = (word) => [...word.toLowerCase()].sort();
    const wanted = letters(text.trim());
    let best = null, least = 0.5;
    said.classes.names.forEach((name, index) => {
      const rest = letters(name), length = Math.max(rest.length, wanted.length);
      for (const letter of wanted) {
        const at = rest.indexOf(letter);
        if (at >= 0) rest.splice(at, 1);
      }
      const missing = length - ([...name].length - rest.length);
      if (missing / length < least) [best, least] = [index, missing / length];
    });
    return best;
  }

  if (said.classes) {
    document.getElementById("class-names").append(...said.classes.names.map((name) => {
      const option = document.createElement("option");
      option.value = name;
      return option;
    }));
    document.querySelector("main").addEventListener("click", (event) => {
      const button = event.target.closest("[data-class]");
      const index = button ? said.classes.names.indexOf(nameIn(button)) : onAxis(event);
      if (index >= 0) choose(index);
    });
    plots.forEach((plot) => plot.addEventListener("mousemove", (event) => {
      plot.classList.toggle("on-name", !event.target.closest(".nsewdrag") && onAxis(event) >= 0);
    }));
    query.addEventListener("input", () => {
      const index = said.classes.names.indexOf(query.value);
      if (index >= 0) choose(index);
      else if (!query.value) choose(null);
    });
    document.getElementById("search").addEventListener("submit", (event) => {
      event.preventDefault();
      const index = bestMatch(query.value);
      if (index !== null) {
        if (index !== chosen) choose(index);
        goToNext();
      } else if (query.value.trim()) {
        chosen = null;
        found.replaceChildren(closing(), element("p", `There is no class ${query.value}`));
        const near = mostLike(query.value);
        if (near !== null) found.append("Did you mean ", classButton(near), "?");
        found.hidden = false;
        markAll();
      }
    });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !found.hidden) { query.value = ""; choose(null); }
    });
  }

  // --- where the reader is ----------------------------------------------------------------------

  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
  const inView = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      const link = links.get(entry.target.id);
      if (link) link.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  document.querySelectorAll("main section").forEach((part) => inView.observe(part));

  // --- a run that still trains ------------------------------------------------------------------

  if (said.renewal) {
    const renew = document.getElementById("renew");
    renew.checked = memory.get("renew") !== "no";
    renew.addEventListener("change", () => memory.set("renew", renew.checked ? "yes" : "no"));
    history.scrollRestoration = "manual";
    root.style.scrollBehavior = "auto";
    scrollTo(0, Number(memory.get("scroll") || 0));
    root.style.scrollBehavior = "";
    addEventListener("pagehide", () => memory.set("scroll", String(scrollY)));
    setInterval(() => { if (renew.checked && !document.hidden) location.reload(); }, 1000 * said.renewal);
  }
})();
