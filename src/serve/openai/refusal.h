// SPDX-License-Identifier: Apache-2.0
// Errors of the HTTP interface, as OpenAI writes them.
#pragma once

#include <string>

#include "serve/http.h"

namespace hocket::serve {

/// Thrown where a request is refused.
struct Refusal {
  int status = 400;
  std::string message;
  std::string param = "";  ///< the field at fault; "": none
  std::string code = "";   ///< for programs; "": none
  int retry_after_s = 0;   ///< above 0: the client may come again then
};

/// {"error": {"message", "type", "param", "code"}}; the type follows from the status.
std::string error_json(const Refusal& refusal);
HttpResponse error_response(const Refusal& refusal);

}  // namespace hocket::serve
