// The page of an agent or a cluster: one status per second by server-sent events, and the last ten
// minutes as plots. The status of a cluster is that of an agent, with nodes and changes.
//
// Names and locations come from jobs, so every text is set by textContent, and plots are drawn on a
// canvas. Nothing is loaded from elsewhere. A connection that is lost is shown and made again.
"use strict";

(() => {
  // Points that are shown: ten minutes.
  const MAX_POINTS = 600;
  // The shortest time that a plot shows, in seconds.
  const MIN_SPAN = 60;
  // A gap in time that a line does not cross, in seconds.
  const MAX_GAP = 5;
  // Without an event for so long, the connection counts as lost.
  const SILENCE = 5000;
  const RETRY = 2000;
  // A job that waits for more than this part of its time is marked.
  const STALLED = 0.05;
  const COLOURS = 8;
  // Distances of the grid for bytes: powers of two, so that labels are round.
  const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

  const byId = (id) => document.getElementById(id);

  // ---- numbers as text ----

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  function bytes(value) {
    let unit = 0;
    let scaled = value || 0;
    while (scaled >= 1023.95 && unit < UNITS.length - 1) {
      scaled /= 1024;
      unit += 1;
    }
    return `${unit === 0 ? Math.round(scaled) : scaled.toFixed(1)} ${UNITS[unit]}`;
  }

  const rate = (value) => `${bytes(value)}/s`;
  const count = (value) => Math.round(value || 0).toLocaleString("en-US");
  const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
  const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)}%`);

  function samplesPerSecond(value) {
    return value >= 100 ? count(value) : (value || 0).toFixed(1);
  }

  function duration(seconds) {
    const parts = [
      [Math.floor(seconds / 86400), "d"],
      [Math.floor(seconds / 3600) % 24, "h"],
      [Math.floor(seconds / 60) % 60, "min"],
      [Math.floor(seconds) % 60, "s"],
    ];
    const first = parts.findIndex(([value]) => value > 0);
    const shown = first < 0 ? parts.slice(3) : parts.slice(first, first + 2);
    return shown.map(([value, unit]) => `${value} ${unit}`).join(" ");
  }

  // A local date and time. Swedish dates are those of ISO 8601.
  const dateTime = (seconds) => new Date(1000 * seconds).toLocaleString("sv-SE");

  // The part of requests that took no read of storage of their own.
  function hitShare(counts) {
    const hits = counts.hits + counts.joined + (counts.disk_reads || 0);
    return hits + counts.reads > 0 ? hits / (hits + counts.reads) : null;
  }

  // A program without its directories.
  const program = (name) => name.slice(name.lastIndexOf("/") + 1) || name;

  // ---- parts of the page ----

  function setText(element, text) {
    if (element.textContent !== text) {
      element.textContent = text;
    }
  }

  function add(parent, tag, className) {
    const element = document.createElement(tag);
    if (className) {
      element.className = className;
    }
    return parent.appendChild(element);
  }

  function setBar(bar, share) {
    bar.style.width = `${(100 * Math.min(1, Math.max(0, share || 0))).toFixed(1)}%`;
  }

  // Adds and removes children until there are `wanted`. Those that stay keep a reader's selection.
  function resize(parent, wanted, make) {
    while (parent.children.length > wanted) {
      parent.lastElementChild.remove();
    }
    while (parent.children.length < wanted) {
      make(parent);
    }
  }

  // A table below a heading. A column has `name`, `text` of a row, and by choice `detail` (a second
  // line), `title`, `bar` (a share), `warns`, `isNumber`, and `isOfCluster`.
  class Table {
    constructor(section, columns, empty) {
      this.columns = columns;
      this.table = add(section, "table");
      this.head = add(add(this.table, "thead"), "tr");
      for (const column of columns) {
        const cell = add(this.head, "th", column.isNumber ? "number" : "");
        cell.scope = "col";
        cell.textContent = column.name;
      }
      this.body = add(this.table, "tbody");
      this.empty = add(section, "p", "empty");
      this.empty.textContent = empty;
      // Until the first status, neither is known.
      this.table.hidden = true;
      this.empty.hidden = true;
    }

    makeRow(body) {
      const row = add(body, "tr");
      for (const column of this.columns) {
        const cell = add(row, "td", column.isNumber ? "number" : "");
        cell.dataset.column = column.name;
        const content = add(cell, "div");
        add(content, "span", "text");
        if (column.bar) {
          add(add(content, "div", "bar"), "div");
        }
        if (column.detail) {
          add(content, "span", "detail");
        }
      }
    }

    show(rows, isCluster) {
      this.table.hidden = rows.length === 0;
      this.empty.hidden = rows.length > 0;
      const isHidden = (column) => column.isOfCluster === true && !isCluster;
      this.columns.forEach((column, number) => {
        this.head.children[number].hidden = isHidden(column);
      });
      resize(this.body, rows.length, (body) => this.makeRow(body));
      rows.forEach((row, at) => {
        const cells = this.body.children[at].children;
        this.columns.forEach((column, number) => {
          const cell = cells[number];
          cell.hidden = isHidden(column);
          setText(cell.querySelector(".text"), column.text(row));
          if (column.detail) {
            setText(cell.querySelector(".detail"), column.detail(row));
          }
          if (column.bar) {
            setBar(cell.querySelector(".bar > div"), column.bar(row));
          }
          if (column.title) {
            cell.title = column.title(row);
          }
          if (column.warns) {
            cell.classList.toggle("is-warning", column.warns(row));
          }
        });
      });
    }
  }

  // ---- plots ----

  function variable(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // A plot with a legend. `series` are made of the points: {key, name, values}.
  class Plot {
    constructor(figure, format, isShare) {
      this.figure = figure;
      this.canvas = figure.querySelector(".canvas");
      this.legend = figure.querySelector(".legend");
      this.format = format;
      this.isShare = isShare;
      this.keys = null;
      this.series = [];
      this.times = [];
      new ResizeObserver(() => this.fit()).observe(this.canvas);
    }

    size() {
      return { width: Math.max(120, this.canvas.clientWidth), height: this.canvas.clientHeight };
    }

    fit() {
      if (this.plot) {
        this.plot.setSize(this.size());
      }
    }

    // Colours have changed.
    repaint() {
      this.keys = null;
      this.show(this.times, this.series);
    }

    show(times, series) {
      this.times = times;
      this.series = series;
      const keys = series.map((it) => it.key).join("\n");
      const data = [times, ...series.map((it) => it.values)];
      if (keys === this.keys) {
        this.plot.setData(data);
      } else {
        this.keys = keys;
        this.make(data);
      }
      this.showLegend();
    }

    make(data) {
      if (this.plot) {
        this.plot.destroy();
      }
      const axis = {
        stroke: variable("--quiet"),
        grid: { stroke: variable("--grid"), width: 1 },
        ticks: { show: false },
        font: '11px system-ui, "DejaVu Sans", sans-serif',
      };
      const time = (seconds) => new Date(1000 * seconds).toTimeString().slice(0, 5);
      const clock = (seconds) => new Date(1000 * seconds).toTimeString().slice(0, 8);
      const times = (plot, ticks) => {
        const isShort = plot.scales.x.max - plot.scales.x.min < 150;
        return ticks.map(isShort ? clock : time);
      };
      const lines = this.series.map((it, at) => ({
        label: it.name,
        stroke: variable(`--series-${at % COLOURS}`),
        fill: this.series.length === 1 ? `${variable("--series-0")}22` : undefined,
        width: 1.75,
        dash: at >= COLOURS ? [4, 3] : undefined,
        points: { show: false },
      }));
      const most = (plot, low, high) => [0, this.isShare ? 1 : 1.1 * Math.max(high || 0, 1024)];
      const span = (plot, first, last) => [Math.min(first, last - MIN_SPAN), last];
      const options = {
        ...this.size(),
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { range: span }, y: { range: most } },
        axes: [
          { ...axis, values: times, space: 70, size: 24 },
          {
            ...axis,
            values: (plot, ticks) => ticks.map(this.format),
            incrs: this.isShare ? [0.25, 0.5, 1] : BINARY_STEPS,
            size: this.isShare ? 48 : 82,
            space: 32,
          },
        ],
        series: [{}, ...lines],
        hooks: { setCursor: [() => this.showLegend()] },
      };
      this.plot = new uPlot(options, data, this.canvas);
    }

    // Names, and the values below the pointer, or else the newest.
    showLegend() {
      const at = this.plot && this.plot.cursor.idx !== null ? this.plot.cursor.idx : this.times.length - 1;
      resize(this.legend, this.series.length, (list) => {
        const item = add(list, "li");
        ["swatch", "name", "now"].forEach((part) => add(item, "span", part));
      });
      this.series.forEach((it, number) => {
        const item = this.legend.children[number];
        const [swatch, name, now] = item.children;
        swatch.style.background = variable(`--series-${number % COLOURS}`);
        setText(name, it.name);
        item.title = it.name;
        const value = it.values[at];
        setText(now, value === null || value === undefined ? "–" : this.format(value));
      });
    }
  }

  // ---- the data ----

  let points = [];

  function addPoints(more) {
    const last = points.length > 0 ? points[points.length - 1].time : 0;
    points = points.concat(more.filter((point) => point.time > last)).slice(-MAX_POINTS);
  }

  // Points in columns. `values` lists [key, name, value] of a point. Lines end at gaps in time.
  function columns(values) {
    const times = [];
    const series = new Map();
    const put = (key, name, value) => {
      if (!series.has(key)) {
        series.set(key, { key, name, values: [] });
      }
      const found = series.get(key);
      while (found.values.length < times.length - 1) {
        found.values.push(null);
      }
      found.values[times.length - 1] = Math.max(found.values[times.length - 1] || 0, value);
    };
    for (const point of points) {
      if (times.length > 0 && point.time - times[times.length - 1] > MAX_GAP) {
        times.push(times[times.length - 1] + 1);
      }
      times.push(point.time);
      values(point)
        .filter(([, , value]) => value !== null && value !== undefined)
        .forEach(([key, name, value]) => put(key, name, value));
    }
    const all = [...series.values()];
    for (const one of all) {
      while (one.values.length < times.length) {
        one.values.push(null);
      }
    }
    return { times, series: all };
  }

  const plots = {
    rate: new Plot(byId("plot-rate"), rate, false),
    hit: new Plot(byId("plot-hit"), (share) => `${Math.round(100 * share)}%`, true),
    stalled: new Plot(byId("plot-stalled"), (share) => `${Math.round(100 * share)}%`, true),
  };

  function showPlots() {
    const hasStores = points.some((point) => point.stores.length > 0);
    const byStore = (point) => point.stores.map((it) => [it.name, it.name, it.bytes_per_second]);
    const whole = (point) => [["all", "all stores", point.bytes_per_second]];
    // Processes of several nodes may have one number.
    const jobKey = (job) => `${job.node || ""} ${job.process} ${job.name}`;
    const jobName = (job) => `${program(job.name)} ${job.process}${job.node ? ` on ${job.node}` : ""}`;
    const shown = {
      rate: columns(hasStores ? byStore : whole),
      hit: columns((point) => [["all", "all jobs", point.hit_share]]),
      stalled: columns((point) => point.jobs.map((job) => [jobKey(job), jobName(job), job.stalled_share])),
    };
    for (const [name, { times, series }] of Object.entries(shown)) {
      plots[name].show(times, series);
    }
  }

  const lines = (texts) => texts.join("\n");

  function nodeState(node) {
    if (!node.is_connected) {
      return `silent for ${duration(node.silent_seconds)}`;
    }
    return node.is_draining ? "being drained" : "connected";
  }

  const leaseText = (lease) => `${rate(lease.bytes_per_second)} of ${lease.store}`;

  // Nodes may have copies of one sample.
  function keptText(dataset) {
    const copies = dataset.held_samples > dataset.samples ? ", copies included" : "";
    const disks = dataset.disk_bytes ? `, and ${bytes(dataset.disk_bytes)} on disks` : "";
    const more = dataset.saved_by_gb >= 1e5 ? `; 1 GB more saves ${rate(dataset.saved_by_gb)}` : "";
    return plural(dataset.held_samples, "sample") + copies + disks + more;
  }

  const tables = {
    nodes: new Table(
      byId("nodes"),
      [
        { name: "Node", text: (node) => node.name },
        { name: "User", text: (node) => node.user },
        { name: "State", text: nodeState, warns: (node) => !node.is_connected },
        { name: "Jobs", isNumber: true, text: (node) => count(node.jobs) },
        {
          name: "Memory",
          text: (node) => `${bytes(node.held_bytes)} of ${bytes(node.memory)}`,
          bar: (node) => node.held_bytes / node.memory,
        },
        { name: "Rate", isNumber: true, text: (node) => rate(node.bytes_per_second) },
        {
          name: "Leases",
          text: (node) => lines(node.leases.map(leaseText)) || "none",
          detail: (node) => (node.is_connected || node.leases.length === 0 ? "" : "reserved"),
        },
      ],
      "No agent has connected yet.",
    ),
    jobs: new Table(
      byId("jobs"),
      [
        { name: "Job", text: (job) => program(job.name), detail: (job) => `process ${job.process}`, title: (job) => job.name },
        { name: "Node", isOfCluster: true, text: (job) => job.node || "" },
        { name: "Datasets", text: (job) => lines(job.datasets) || "none" },
        { name: "Samples/s", isNumber: true, text: (job) => samplesPerSecond(job.samples_per_second) },
        {
          name: "Hit share",
          isNumber: true,
          text: (job) => percent(hitShare(job)),
          detail: (job) => (job.expected_hit_share === null ? "" : `expected ${percent(job.expected_hit_share)}`),
        },
        {
          name: "Stalled",
          isNumber: true,
          text: (job) => percent(job.stalled_share),
          warns: (job) => job.stalled_share > STALLED,
        },
        { name: "Waits for", text: (job) => job.waits_for || "–", warns: (job) => job.stalled_share > STALLED },
        { name: "Waiting", isNumber: true, text: (job) => count(job.waiting) },
        {
          name: "Read for it",
          isNumber: true,
          text: (job) => bytes(job.read_bytes),
          detail: (job) => (job.failures > 0 ? `${count(job.failures)} failed` : `weight ${job.weight}`),
          warns: (job) => job.failures > 0,
        },
      ],
      "No job is connected.",
    ),
    datasets: new Table(
      byId("datasets"),
      [
        { name: "Dataset", text: (it) => it.url, detail: (it) => plural(it.samples, "sample") },
        {
          name: "In memory",
          text: (it) => `${bytes(it.held_bytes)} of ${bytes(it.bytes)}`,
          bar: (it) => it.held_bytes / it.bytes,
          detail: keptText,
        },
        { name: "Jobs", isNumber: true, text: (it) => count(it.jobs) },
        { name: "Hits", isNumber: true, text: (it) => count(it.hits) },
        {
          name: "Read",
          isNumber: true,
          text: (it) => bytes(it.read_bytes),
          detail: (it) => plural(it.reads, "sample"),
        },
      ],
      "No job has opened a dataset yet.",
    ),
    stores: new Table(
      byId("stores"),
      [
        { name: "Store", text: (it) => it.name },
        { name: "Rate", isNumber: true, text: (it) => rate(it.bytes_per_second) },
        {
          name: "Limit",
          isNumber: true,
          text: (it) => (it.limit === null ? "none" : rate(it.limit)),
          detail: (it) => (it.reserved > 0 ? `${rate(it.reserved)} reserved` : ""),
        },
        {
          name: "Under way",
          isNumber: true,
          text: (it) => count(it.reading) + (it.parallelism === null ? "" : ` of ${count(it.parallelism)}`),
        },
        { name: "Queued", isNumber: true, text: (it) => count(it.queued) },
        { name: "Read", isNumber: true, text: (it) => bytes(it.read_bytes) },
      ],
      "No store has been read yet.",
    ),
    policy: new Table(
      byId("policy"),
      [
        { name: "Key", text: (it) => it.key },
        { name: "Value", text: (it) => it.value },
        { name: "Source", text: (it) => it.source },
      ],
      "All values are the defaults.",
    ),
    changes: new Table(
      byId("changes"),
      [
        { name: "Time", text: (it) => dateTime(it.time) },
        { name: "By", text: (it) => it.by },
        { name: "Change", text: (it) => it.change },
      ],
      "Nothing has been changed since the start.",
    ),
  };

  // What an agent and a cluster differ in.
  function showKind(status, isCluster) {
    const own = `process ${status.process}, running for ${duration(status.uptime_seconds)}`;
    setText(byId("heading"), isCluster ? "foreread control" : "foreread agent");
    byId("nodes").hidden = !isCluster;
    byId("changes").hidden = !isCluster;
    if (isCluster) {
      const connected = status.nodes.filter((node) => node.is_connected).length;
      const nodes = `${count(connected)} of ${plural(status.nodes.length, "node")} connected`;
      setText(byId("about"), `cluster at ${status.address}, ${nodes}, ${own}`);
    } else {
      setText(byId("about"), own);
    }
  }

  function showStatus(status, point) {
    const isCluster = Array.isArray(status.nodes);
    showKind(status, isCluster);
    document.title = `${rate(point.bytes_per_second)} – ${byId("heading").textContent}`;
    setText(byId("held"), bytes(status.held_bytes));
    add(byId("held"), "small").textContent = ` of ${bytes(status.memory)}`;
    setBar(byId("held-bar"), status.held_bytes / status.memory);
    setText(byId("held-note"), plural(status.samples, "sample"));
    byId("disk").hidden = !status.disk;
    if (status.disk) {
      setText(byId("disk-held"), bytes(status.disk.held_bytes));
      add(byId("disk-held"), "small").textContent = ` of ${bytes(status.disk.capacity)}`;
      setBar(byId("disk-bar"), status.disk.held_bytes / status.disk.capacity);
      setText(byId("disk-note"), `${bytes(status.disk.written_bytes)} written since the start`);
    }
    setText(byId("rate"), rate(point.bytes_per_second));
    const failed = status.failures > 0 ? `, ${count(status.failures)} failed` : "";
    const read = `${bytes(status.read_bytes)} in ${plural(status.reads, "sample")}`;
    setText(byId("rate-note"), `${read} since the start${failed}`);
    setText(byId("hit"), percent(point.hit_share));
    setText(byId("hit-note"), `${percent(hitShare(status))} since the start`);
    setText(byId("job-count"), count(status.jobs.length));
    const stalled = status.jobs.filter((job) => job.stalled_share > STALLED).length;
    setText(byId("job-note"), stalled > 0 ? `${plural(stalled, "job")} stalled` : "none stalled");
    // The newest change is the first row.
    const rows = { ...status, nodes: status.nodes || [], changes: [...(status.changes || [])].reverse() };
    for (const [name, table] of Object.entries(tables)) {
      table.show(rows[name], isCluster);
    }
  }

  // ---- the connection ----

  let source = null;
  let lastEvent = 0;

  function setConnection(state, text) {
    document.body.dataset.connection = state;
    setText(byId("connection"), text);
  }

  function lost() {
    if (source) {
      source.close();
      source = null;
    }
    if (document.body.dataset.connection !== "lost") {
      const since = new Date().toTimeString().slice(0, 8);
      setConnection("lost", `connection lost at ${since}, trying again`);
    }
    setTimeout(connect, RETRY);
  }

  function received(event) {
    const { status, point } = JSON.parse(event.data);
    lastEvent = Date.now();
    setConnection("live", "live");
    addPoints([point]);
    showStatus(status, point);
    showPlots();
  }

  async function connect() {
    try {
      const answer = await fetch("/api/v1/history", { signal: AbortSignal.timeout(SILENCE) });
      if (answer.status === 401) {
        const command = `${byId("heading").textContent} status`;
        setConnection("lost", `this link is no longer valid: ${command} prints the new one`);
      }
      if (!answer.ok) {
        throw new Error(answer.statusText);
      }
      points = [];
      addPoints((await answer.json()).points);
    } catch {
      lost();
      return;
    }
    lastEvent = Date.now();
    source = new EventSource("/api/v1/events");
    source.onmessage = received;
    source.onerror = lost;
  }

  setInterval(() => {
    if (source && Date.now() - lastEvent > SILENCE) {
      lost();
    }
  }, 1000);
  const repaint = () => Object.values(plots).forEach((plot) => plot.repaint());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  connect();
})();
