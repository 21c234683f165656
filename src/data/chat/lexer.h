// SPDX-License-Identifier: Apache-2.0
// Tokens of a Jinja template, with the whitespace rules of transformers' environment: trim_blocks
// and lstrip_blocks are on, one line end at the end of the template is dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::data::jinja {

struct Token {
  enum class Kind : uint8_t {
    data,
    block_begin,
    block_end,
    variable_begin,
    variable_end,
    name,
    text,
    integer,
    real,
    op,
    end
  };
  Kind kind = Kind::end;
  int line = 1;
  std::string text;  ///< of data, names, operators; a string's value
  int64_t integer = 0;
  double real = 0;
};

/// `where` names the template in errors. Throws Error, with the line, for anything that jinja2
/// refuses.
std::vector<Token> tokenize(std::string_view source, const std::string& where);

}  // namespace hocket::data::jinja
