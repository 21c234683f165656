// SPDX-License-Identifier: Apache-2.0
// Memory that persistent tensors take side by side.
#pragma once

#include <cstdint>

#include "base/math.h"
#include "program/memory.h"

namespace hocket {

/// Bytes that a program's persistent buffers take in a store of their own: at most those of
/// program::memory_of, which gives every buffer pages of its own.
inline int64_t persistent_bytes(const program::Program& program, program::ClassId cls = 0) {
  int64_t bytes = 0;
  for (const program::Buffer& buffer : program.classes[cls].buffers) {
    if (buffer.kind == program::BufferKind::persistent) {
      bytes += round_up(buffer.type.bytes(), 64);
    }
  }
  return program::whole_pages(bytes);
}

}  // namespace hocket
