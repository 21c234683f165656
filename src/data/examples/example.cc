// SPDX-License-Identifier: Apache-2.0
#include "data/examples/example.h"

#include <fmt/core.h>

namespace hocket::data {

std::string Example::place() const {
  const std::string at = fmt::format("{}:{}", file, line);
  return entry > 0 ? fmt::format("{} (entry {})", at, entry) : at;
}

const char* to_string(Example::Kind kind) {
  switch (kind) {
    case Example::Kind::text:
      return "text";
    case Example::Kind::chat:
      return "chat";
    case Example::Kind::completion:
      return "completion";
    case Example::Kind::preference:
      return "preference";
    case Example::Kind::unpaired:
      return "unpaired";
    case Example::Kind::tokens:
      return "tokens";
  }
  return "?";
}

}  // namespace hocket::data
