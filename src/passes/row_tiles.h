// SPDX-License-Identifier: Apache-2.0
// Products beside collectives along their rows, as tensor parallelism has them with
// plan.sequence_parallel, in blocks (asynchronous collective products, Wang et al., ASPLOS 2023).
#pragma once

#include <cstdint>

#include "program/program.h"

namespace hocket::passes {

/// The collective goes around a ring, in messages. Products that take what is gathered begin with
/// the rows that the rank itself has, and go on with those that come; a product that is scattered
/// makes the rows of others first, and its own while these are on their way. The rows of others are
/// made in as many blocks as make up to `most` with the own one. Sums of two ranks keep their bits,
/// those of more are added up in the order of the ring.
/// `next_tag`: of messages; moves on by those that are made.
void tile_rows(program::Program& program, program::ClassId cls, int64_t most, int32_t* next_tag);

}  // namespace hocket::passes
