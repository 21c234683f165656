// SPDX-License-Identifier: Apache-2.0
// Products beside collectives along their rows, as tensor parallelism has them with
// plan.sequence_parallel, in blocks (asynchronous collective products, Wang et al., ASPLOS 2023).
#pragma once

#include <cstdint>

#include "program/program.h"

namespace hocket::passes {

/// Turns the collective into a ring of messages. Products of gathered rows start with the rank's
/// own rows and continue with received ones. A scattered product computes the rows of others first,
/// and its own while those are in flight. The rows of others are computed in blocks, at most `most`
/// with the own one. Sums of two ranks keep their bits; longer ones are added in the order of the
/// ring. `next_tag`: first message tag; advanced by the messages made.
void tile_rows(program::Program& program, program::ClassId cls, int64_t most, int32_t* next_tag);

}  // namespace hocket::passes
