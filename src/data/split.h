// SPDX-License-Identifier: Apache-2.0
// Chance that decides whether a text is held out for validation.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace hocket::data {

/// Number from 0 to below 1, by content and seed: texts below the share are held out.
inline double split_draw(const Hash128& content, uint64_t seed) {
  const uint64_t bits = hash_combine(hash_combine(seed, content.high), content.low);
  return (bits >> 11) * 0x1p-53;
}

}  // namespace hocket::data
