// SPDX-License-Identifier: Apache-2.0
// Pages that are one file each: frame, style, data and scripts of page/, which reports share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hocket::diagnose {

struct HtmlPage {
  std::string title;                      ///< any text
  std::string body;                       ///< HTML, before the scripts add to it
  std::string data = "{}";                ///< JSON that is safe inside <script>; the scripts' D
  std::string_view style;                 ///< beside the common one
  std::vector<std::string_view> scripts;  ///< behind core.js, lines.js and sections.js
};

/// Returns the text of the page. Marks of the frame inside the parts have no effect.
std::string to_html(const HtmlPage& page);

/// Escapes <, >, & and both quotes, for text and attributes. Other bytes stay.
std::string escape_html(std::string_view text);

/// Escapes '<' in JSON, where it occurs only in strings: nothing else could end a <script>.
std::string safe_in_script(std::string_view json);

}  // namespace hocket::diagnose
