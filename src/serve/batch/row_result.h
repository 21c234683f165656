// SPDX-License-Identifier: Apache-2.0
// Results of rows, as workers send them and parts of the output hold them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json_writer.h"
#include "serve/batch/input_rows.h"

namespace hocket::serve {

struct RowResult {
  enum class Kind : char {
    output = 'O',
    error = 'E',
    blank = 'B',  ///< an empty line: neither
  };
  int64_t row = 0;
  Kind kind = Kind::output;
  int64_t prompt_tokens = 0, tokens = 0;
  std::string json;  ///< a line of the output or of the errors, without its end
};

/// A row's custom_id, as the row has it; the first alternative: none.
using CustomId = std::variant<std::monostate, std::string, int64_t>;
/// Writes the member custom_id of an object; nothing if there is none.
void write_custom_id(const CustomId& id, JsonWriter* json);

/// Returns the line of an error: {"line", "custom_id", "error": {"code", "message"}}.
RowResult row_error(int64_t row, const CustomId& custom_id, std::string_view code,
                    std::string_view message);

void append_result(const RowResult& result, std::string* out);
/// Inverse of append_result for several. `where` names the text in errors.
std::vector<RowResult> parse_results(std::string_view text, const std::string& where);

void append_row(const InputRow& row, std::string* out);
std::vector<InputRow> parse_rows(std::string_view text, const std::string& where);

}  // namespace hocket::serve
