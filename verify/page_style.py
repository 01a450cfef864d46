"""Looks of the page: one sheet for desktop and phone, light and dark."""

STYLE = """
:root{--paper:#f7f7f4;--card:#fff;--ink:#1c1f23;--soft:#5d656e;--line:#d9dcdf;--ok:32,122,92;--bad:#b3261e;
--badpaper:#fbe9e7;--open:#8a5a00;--openpaper:#fdf3dc;--okpaper:#e3f2ec;--u0:#cfd6da;--u1:#f2b84b;--u2:#e8833a;
--u3:#d2483b;--u4:#8f1d3f}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--card:#1d2125;--ink:#e8eaec;--soft:#9aa4ae;
--line:#343a41;--ok:86,190,150;--bad:#ff8a80;--badpaper:#3b1d1b;--open:#f0c060;--openpaper:#35290f;
--okpaper:#173128;--u0:#3a424a;--u1:#c08a2b;--u2:#d77a35;--u3:#e4604f;--u4:#ff6f9c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:64rem;margin:0 auto;padding:1.25rem}
h1{font-size:clamp(2.2rem,7vw,3.4rem);line-height:1.05;margin:.1em 0 .25em;letter-spacing:-.02em}
h2{font-size:1.15rem;margin:0 0 .75rem}
p{margin:.4em 0}
.kicker{color:var(--soft);font-size:.9rem;margin:0;overflow-wrap:anywhere}
.banner,section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:1.25rem;
margin-bottom:1.1rem}
.banner{border-left:8px solid var(--open);background:var(--openpaper)}
.banner.same{border-left-color:rgb(var(--ok));background:var(--okpaper)}
.banner.different{border-left-color:var(--bad);background:var(--badpaper)}
.failure{border-left:8px solid var(--bad)}
.notes{color:var(--soft);font-size:.9rem;padding-left:1.1rem;margin:.6rem 0 0}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.4rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
thead th{color:var(--soft);font-weight:600;font-size:.85rem;white-space:nowrap}
tbody th{font-weight:600;white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.detail{min-width:16rem;overflow-wrap:anywhere}
.mark{border-radius:999px;padding:.1rem .6rem;font-size:.82rem;font-weight:600;white-space:nowrap;
background:var(--openpaper);color:var(--open)}
.mark.same{background:var(--okpaper);color:rgb(var(--ok))}
.mark.different{background:var(--badpaper);color:var(--bad)}
.mark.not_applicable{background:transparent;color:var(--soft);border:1px solid var(--line)}
.heat{border-spacing:3px;border-collapse:separate;width:auto;min-width:60%}
.heat td,.heat th{border:0}.heat thead th+th{text-align:center}
.heat td{text-align:center;border-radius:6px;min-width:5.2rem;font-variant-numeric:tabular-nums}
.heat td.ok{background:rgba(var(--ok),var(--shade))}
.heat td.bad{background:var(--bad);color:var(--card);font-weight:700}
.heat td.none{background:repeating-linear-gradient(45deg,transparent 0 5px,var(--line) 5px 6px)}
.legend{color:var(--soft);font-size:.85rem}
.swatch{display:inline-block;width:.9em;height:.9em;border-radius:3px;margin:0 .4em 0 1em;
vertical-align:-.1em}
.swatch:first-child{margin-left:0}
.swatch.ok{background:rgba(var(--ok),.5)}.swatch.bad{background:var(--bad)}
.swatch.none{background:repeating-linear-gradient(45deg,transparent 0 3px,var(--soft) 3px 4px)}
.facts{margin:0;display:grid;gap:.35rem}
.facts div{display:grid;grid-template-columns:8.5rem 1fr;gap:.75rem}
.facts dt{color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
figure{margin:1rem 0}
figcaption{color:var(--soft);font-size:.85rem;margin-bottom:.4rem}
.strip{display:flex;flex-wrap:wrap;gap:2px}
.strip i,figcaption i{display:inline-block;width:9px;height:22px;border-radius:2px}
figcaption i{height:.8em;vertical-align:-.05em}
.u0{background:var(--u0)}.u1{background:var(--u1)}.u2{background:var(--u2)}.u3{background:var(--u3)}
.u4{background:var(--u4)}
.tops{width:auto}
.repro{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem;
overflow-x:auto;font:.9rem/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;margin:.3rem 0 0}
.chart{display:block;width:100%;min-width:34rem;height:auto;font-size:13px}
.chart text{fill:var(--ink)}.chart .tick{fill:var(--soft);font-size:11px}
.chart .grid{stroke:var(--line)}.chart .bar{stroke:rgb(var(--ok));stroke-width:3;stroke-linecap:round}
.chart .dot{fill:rgb(var(--ok))}.chart .ring{fill:none;stroke:var(--ink);stroke-width:1.5}
@media (max-width:40rem){main{padding:.7rem}.banner,section{padding:.95rem}.chart{min-width:0;font-size:15px}
.chart .tick{font-size:13px}.checks thead{display:none}.checks tr{display:grid;column-gap:.4rem;
grid-template-columns:1fr auto 4rem 3rem;border-bottom:1px solid var(--line);padding:.3rem 0}
.checks th,.checks td{border:0;padding:.1rem}.checks .detail{grid-column:1/-1;min-width:0;color:var(--soft)}
.facts div{grid-template-columns:1fr;gap:0;margin-bottom:.25rem}}
"""
