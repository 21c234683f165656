// SPDX-License-Identifier: Apache-2.0
// Implements: chat_page (openai/api.h).
#include <string_view>

#include "serve/openai/api.h"

namespace hocket::serve {

std::string_view chat_page() {
  static constexpr std::string_view text =
#include "serve/page/chat.html.inc"
      ;
  return text;
}

}  // namespace hocket::serve
