// SPDX-License-Identifier: Apache-2.0
#include "data/examples/example.h"

namespace hocket::data {

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
  }
  return "?";
}

}  // namespace hocket::data
