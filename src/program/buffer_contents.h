// SPDX-License-Identifier: Apache-2.0
// Contents of named buffers, as agreed with the host: the tensors and elements at each place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Returns whether the buffer has some of the tensor, on this or other ranks of its class.
bool holds(const Buffer& buffer, std::string_view tensor);

/// Returns the names of the tensors in a buffer of this name, with these slots.
std::vector<std::string> tensors_of(const std::string& name, const std::vector<Slot>& slots);

/// Callback for elements [begin, begin + count) of a full tensor, in memory order. They lie side by
/// side in a rank's buffer, from its element `local` on.
using OnRun = std::function<void(int64_t begin, int64_t count, int64_t local)>;
/// Calls `run` for all elements of the tensor `tensor`, of type `full`, that the named buffer holds
/// on the rank. Nothing if it is not there.
void for_each_run(const Buffer& buffer, std::string_view tensor, const TensorType& full,
                  const Program& program, int32_t rank, const OnRun& run);

/// Elements of a bucket, of all its blocks together.
int64_t elements_of(const Buffer& bucket, const Mesh& mesh);

/// Elements of the bucket that a rank has a block of, and where the block of this rank begins.
struct Block {
  int64_t bucket = 0, begin = 0;
};
Block block_of(const Buffer& buffer, const Program& program, int32_t rank);

/// A buffer's content on one rank, independent of its program.
struct Contents {
  TensorType type;  ///< local
  Layout layout;    ///< of the mesh below
  std::vector<Slot> slots;
  Space space = Space::device;
  Mesh mesh;                    ///< of the rank's role
  std::vector<int32_t> coords;  ///< of the rank
};
Contents contents_of(const Buffer& buffer, const Program& program, int32_t rank);
/// Returns whether two buffers of a name have the same elements in the same order. Their meshes may
/// differ: only the rank's part of every dim counts.
bool have_same_elements(const Contents& one, const Contents& other);

/// A tensor that persists in both programs, and that on some rank `other` does not hold in the same
/// buffer as `program`: they can't run in turn on the same store. "" if there is none.
std::string held_otherwise(const Program& program, const Program& other);

}  // namespace hocket::program
