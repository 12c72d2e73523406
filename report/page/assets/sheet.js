// A drawing area: a picture, a layer for highlights above it, and a tip.

class Sheet {
  constructor(figure, element) {
    this.figure = figure; this.element = element;
    this.svg = made("svg", { role: "img" }, element);
    this.above = made("svg", { class: "above", "aria-hidden": "true" }, element); // a separate layer, so that the picture is not drawn again
    this.tip = made("div", { class: "tip", hidden: "" }, element);
  }
  clear(width, height) {
    this.width = width; this.height = height;
    for (const svg of [this.svg, this.above]) {
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.style.height = `${height}px`;
      svg.replaceChildren();
    }
    this.svg.setAttribute("aria-label", this.figure.alt);
    this.over = made("g", {}, this.above);
  }
  where(event) {
    const box = this.svg.getBoundingClientRect();
    return [(event.clientX - box.left) * this.width / box.width, (event.clientY - box.top) * this.height / box.height];
  }
}
