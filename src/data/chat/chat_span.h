// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace hocket::data {

/// Bytes [begin, end) of a rendered chat.
struct ChatSpan {
  size_t begin = 0, end = 0;
  bool operator==(const ChatSpan&) const = default;
};

}  // namespace hocket::data
