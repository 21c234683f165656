// SPDX-License-Identifier: Apache-2.0
// Assembly of a page: frame, style, body, data, script. The parts are the files of page/, which the
// build embeds as string literals (cmake/HocketEmbed.cmake).
#include "diagnose/html_page.h"

namespace hocket::diagnose {
namespace {

constexpr std::string_view kFrame =
#include "diagnose/page/page.html.inc"
    ;
constexpr std::string_view kStyle =
#include "diagnose/page/style.css.inc"
    ;
constexpr std::string_view kCommonScripts[] = {
#include "diagnose/page/core.js.inc"
    ,
#include "diagnose/page/lines.js.inc"
    ,
#include "diagnose/page/sections.js.inc"
};

/// Returns the text for a mark of the frame.
std::string part_at(std::string_view mark, const HtmlPage& page) {
  if (mark == "TITLE") return escape_html(page.title);
  if (mark == "STYLE") return std::string(kStyle).append(page.style);
  if (mark == "BODY") return page.body;
  if (mark == "DATA") return page.data;
  std::string script;
  for (const std::string_view part : kCommonScripts) {
    script.append("\n").append(part);
  }
  for (const std::string_view part : page.scripts) {
    script.append("\n").append(part);
  }
  return script;
}

}  // namespace

std::string to_html(const HtmlPage& page) {
  // One pass over the frame, so that marks inside the parts have no effect.
  std::string out;
  for (size_t at = 0; at < kFrame.size();) {
    size_t mark = kFrame.find('@', at);
    const size_t close = mark == kFrame.npos ? kFrame.npos : kFrame.find('@', mark + 1);
    if (close == kFrame.npos) {
      mark = kFrame.size();
    }
    out += kFrame.substr(at, mark - at);
    if (mark == kFrame.size()) break;
    out += part_at(kFrame.substr(mark + 1, close - mark - 1), page);
    at = close + 1;
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string safe_in_script(std::string_view json) {
  std::string safe;
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace hocket::diagnose
