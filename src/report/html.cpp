#include "html.hpp"

#include <fmt/format.h>

#include "svg.hpp"

namespace brume::report {
namespace {

/// The colours of pages and pictures, light and dark.
constexpr const char* palette =
    R"(:root { color-scheme: light dark; --text: #1c2430; --soft: #6b7685; --grid: #e3e7ec; --back: #ffffff;
  --c0: #2463c4; --c1: #d3621b; --c2: #2c8f57; --c3: #8b4cc2; --c4: #b8860b; --c5: #c23a5e;
  --s0: #2c8f57; --s1: #d3621b; --s2: #c23a5e; --s3: #8b4cc2; --s4: #2463c4; --s5: #c9d0d8;
  --s6: #8fcf9f; --s7: #2aa5a0; }
@media (prefers-color-scheme: dark) { :root { --text: #dfe5ec; --soft: #93a0b0; --grid: #2b333d;
  --back: #12171d; --s5: #3a444f; } }
)";

/// Nothing is asked of a network, whatever the files of a run say.
constexpr const char* head = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{}</title>
<style>
{}body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td:not(:first-child) {{ white-space: nowrap; }} th, td {{ padding: .2rem .9rem .2rem 0; text-align: right; }}
th {{ color: var(--soft); font-weight: normal; }} th:first-child, td:first-child {{ text-align: left; }}
pre {{ overflow-x: auto; font-size: 12px; }} figcaption, .legend, p.note {{ color: var(--soft); }}
.legend {{ margin: .2rem 0; }} .legend > span {{ display: inline-block; margin-right: .8em; }}
.columns {{ columns: 20rem; }} .columns li {{ break-inside: avoid; }}
figure {{ margin: 0; }} .charts {{ display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); }}
svg {{ width: 100%; height: auto; }} svg text {{ font-size: 11px; fill: var(--soft); }}
.grid {{ stroke: var(--grid); }} .mark {{ stroke: var(--soft); stroke-dasharray: 4 3; }}
.fault {{ stroke: var(--c5); stroke-dasharray: none; }}
.line {{ fill: none; stroke-width: 1.5; }} .pale {{ opacity: .45; }}
.key {{ display: inline-block; width: 1em; height: .7em; margin-right: .3em; }}
.wide {{ overflow-x: auto; }} .wide svg {{ min-width: 900px; }}
.bar {{ display: flex; height: 16px; width: 100%; min-width: 320px; }}
)";

std::string colours() {
  std::string css;
  for (int i = 0; i < num_shades; ++i)
    css += fmt::format(
        ".c{0} {{ stroke: var(--c{0}); }} .key.c{0} {{ background: var(--c{0}); }} "
        ".fill.c{0} {{ fill: var(--c{0}); stroke: none; }} .fill.s{0} {{ fill: var(--s{0}); }} "
        ".bar .s{0}, .key.s{0} {{ background: var(--s{0}); }}\n",
        i);
  return css;
}

}  // namespace

std::string page(const std::string& title, const std::string& body) {
  return fmt::format(fmt::runtime(head), escaped(title), palette) + colours() +
         "</style></head><body>\n" + body + "</body></html>\n";
}

std::string figure_style() {
  return std::string(palette) +
         "text { font: 12px system-ui, sans-serif; fill: var(--soft); }\n"
         ".title { font-size: 16px; fill: var(--text); }\n"
         ".grid { stroke: var(--grid); } .mark { stroke: var(--soft); stroke-dasharray: 4 3; }\n" +
         colours();
}

std::string html_row(const std::vector<std::string>& cells, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += fmt::format("<{0}>{1}</{0}>", tag, escaped(cell));
  return out + "</tr>\n";
}

std::string bar(const std::vector<Slice>& slices) {
  std::string out = "<div class=\"bar\">";
  for (const Slice& slice : slices)
    out += fmt::format("<span class=\"s{}\" style=\"width:{:.2f}%\" title=\"{}\"></span>",
                       slice.shade, 100.0 * slice.share, escaped(slice.title));
  return out + "</div>";
}

std::string legend(const std::vector<std::pair<int, std::string>>& shades) {
  std::string out = "<p class=\"legend\">";
  for (const auto& [shade, name] : shades)
    out += fmt::format("<span><span class=\"key s{}\"></span>{}</span> ", shade, escaped(name));
  return out + "</p>\n";
}

}  // namespace brume::report
