// SPDX-License-Identifier: Apache-2.0
// Expectations that the attention ops share.
#pragma once

#include <cmath>

#include "ops/rules.h"

namespace hocket::ops {

inline void want_window(std::string_view op, const Attrs& attrs) {
  if (const int64_t window = attrs.i_or("window", 1); window < 1) {
    fail(op, "window is {}; expected keys that a query sees, its own included", window);
  }
}

inline void want_softcap(std::string_view op, const Attrs& attrs) {
  if (!attrs.has("softcap")) return;
  if (const double cap = attrs.f("softcap"); !(cap > 0 && std::isfinite(cap))) {
    fail(op, "softcap is {}; expected a positive number", cap);
  }
}

inline void want_heads(std::string_view op, Types in) {
  for (int i = 0; i < 3; ++i) {
    want_rank(op, in[i], 3);
  }
  want_float(op, in[0]);
  want_dtype(op, in[1], in[0].dtype);
  want_same(op, in[1], in[2]);
  want_equal(op, "k's head dim", in[1].dims[2], in[0].dims[2]);
}

}  // namespace hocket::ops
