"""The page's dress and its one gesture: pointing at a row lights its curve, pointing at a curve its row."""

from .palette import ACCENT, ACCENT_INK, FONT, INK, MUTED, PAPER, RULE

CSS = f"""
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: {PAPER}; color: {INK}; font: 15px/1.5 {FONT}; }}
main {{ max-width: 1160px; margin: 0 auto; padding: 36px 32px 64px; }}
h1 {{ margin: 2px 0 4px; font-size: 40px; font-weight: 650; line-height: 1.15; letter-spacing: -.02em; }}
h1 small {{ font-size: 19px; font-weight: 400; color: {MUTED}; letter-spacing: 0; }}
h1 b {{ color: {ACCENT_INK}; font-weight: 650; }}
h2 {{ margin: 40px 0 2px; font-size: 19px; font-weight: 650; }}
h2 small {{ margin-left: 6px; font-size: 14px; font-weight: 400; }}
p {{ margin: 0; }}
.quiet {{ color: {MUTED}; }}
.over {{ font-size: 14px; color: {MUTED}; overflow-wrap: anywhere; }}
.stats {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr));
         gap: 20px 36px; margin: 28px 0 14px; }}
.stats b {{ display: block; font-size: 25px; font-weight: 600; line-height: 1.2; letter-spacing: -.01em;
           white-space: nowrap; }}
.stats span {{ color: {MUTED}; font-size: 14px; }}
.saved {{ display: flex; height: 12px; border-radius: 6px; overflow: hidden; background: {RULE}; }}
.saved i {{ display: block; background: {INK}; }}
.key {{ display: flex; justify-content: space-between; gap: 20px; margin-top: 5px; font-size: 13px; color: {MUTED}; }}
dl {{ display: flex; flex-wrap: wrap; gap: 10px 32px; margin: 10px 0 0; }}
dt {{ font-size: 13px; color: {MUTED}; overflow-wrap: anywhere; }}
dd {{ margin: 0; font-size: 17px; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
.figure {{ height: 540px; margin: 0 -8px; }}
.wide {{ overflow-x: auto; margin-top: 10px; }}
table {{ border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }}
th {{ padding: 6px 10px; text-align: left; font-weight: 500; color: {MUTED}; white-space: nowrap;
     border-bottom: 1px solid {MUTED}; vertical-align: bottom; }}
td {{ padding: 7px 10px; border-top: 1px solid {RULE}; vertical-align: top; white-space: nowrap; }}
th:first-child, td:first-child {{ padding-left: 0; }}
tr.why td {{ padding: 0 0 8px; border-top: 0; color: {MUTED}; white-space: normal; }}
tr.why div {{ position: sticky; left: 0; max-width: min(1096px, 100vw - 64px); overflow-wrap: anywhere; }}
td.reason {{ min-width: 170px; white-space: normal; overflow-wrap: anywhere; }}
td.long {{ max-width: 220px; overflow: hidden; text-overflow: ellipsis; }}
tr.best td {{ font-weight: 600; color: {ACCENT_INK}; }}
tr.lit td {{ background: #f3f5f7; }}
.run {{ display: inline-block; width: 72px; height: 7px; margin-right: 8px; border-radius: 4px; background: {RULE};
       overflow: hidden; }}
.run i {{ display: block; height: 100%; background: {MUTED}; }}
tr.best .run i {{ background: {ACCENT}; }}
.lit path.js-line {{ stroke: {INK} !important; stroke-width: 3.5px !important; stroke-opacity: 1 !important; }}
footer {{ margin-top: 32px; font-size: 13px; color: {MUTED}; }}
@media print {{ main {{ padding: 0; }} tr {{ break-inside: avoid; }} tr.why {{ break-before: avoid; }} }}
"""

SCRIPT = """
(function () {
  var plot = document.getElementById("curves");
  function light(id, on) {
    document.querySelectorAll('[data-trial="' + id + '"], #curves .trace' + id).forEach(function (part) {
      part.classList.toggle("lit", on);
    });
  }
  function trial(event) {
    var point = event.points[0];
    return point.id || (point.data || {}).uid || point.fullData.uid;
  }
  plot.on("plotly_hover", function (event) { light(trial(event), true); });
  plot.on("plotly_unhover", function (event) { light(trial(event), false); });
  document.querySelectorAll("[data-trial]").forEach(function (row) {
    row.addEventListener("mouseenter", function () { light(row.dataset.trial, true); });
    row.addEventListener("mouseleave", function () { light(row.dataset.trial, false); });
  });
})();
"""
