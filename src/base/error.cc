// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

namespace hocket {

void check_failed(const char* file, int line, const char* cond, const std::string& what) {
  throw std::logic_error(
      fmt::format("internal error at {}:{}: {} does not hold: {}", file, line, cond, what));
}

}  // namespace hocket
