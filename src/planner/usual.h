// SPDX-License-Identifier: Apache-2.0
// Plans that practitioners start with (Megatron-LM, torchtitan, FSDP), and families of plans. The
// search simulates the best usual plans of every family before it bounds the whole space.
#pragma once

#include <array>
#include <cstddef>

#include "planner/space.h"

namespace hocket::planner {

/// Families by the mesh and by what replicas hold. cp belongs to the replicas.
enum class Family : uint8_t {
  data,              ///< replicas with whole parameters: alone, or ZeRO-1 and ZeRO-2
  fsdp,              ///< parameters sharded over replicas: ZeRO-3, HSDP
  tensor,            ///< tp
  pipeline,          ///< pp
  pipeline_tensor,   ///< pp and tp
  experts,           ///< ep over replicas alone
  experts_tensor,    ///< ep and tp
  experts_pipeline,  ///< ep and pp, with tp or without
};
inline constexpr size_t kFamilies = 8;
/// By number of the family.
inline constexpr std::array<const char*, kFamilies> kFamilyNames = {
    "data parallel",   "FSDP",    "tensor", "pipeline", "pp x tp",
    "expert parallel", "ep x tp", "ep x pp"};

Family family_of(const PlanCandidate& plan);

/// Returns whether the mesh is one that practitioners try: tp of a power of two inside a node, with
/// sequence parallelism; cp only for sequences of 4,096 tokens a rank or more; experts whole.
bool is_usual_mesh(const SearchSpace& space, const PlanCandidate& mesh);
/// Returns whether a plan of a usual mesh is one that practitioners try: micro-batches of 1, 2, 4
/// or 8 sequences, 1F1B, interleaved or ZB-H1; beside pipelines whole gradients.
bool is_usual(const PlanCandidate& plan);
/// Returns whether a plan is sharded and recomputed as where memory is short: ZeRO-1 or its
/// equal with parameters gathered once a step (ZeRO-3 in the family of FSDP), everything
/// recomputed.
bool is_customary(const PlanCandidate& plan);

}  // namespace hocket::planner
