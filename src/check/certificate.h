// SPDX-License-Identifier: Apache-2.0
// Certificate of a verdict: hashes of its subject (a program, the single-device graph that it was
// compared with, and the mesh of ranks). A verdict says nothing about anything else.
#pragma once

#include <string>

#include "base/hash.h"
#include "base/json.h"
#include "graph/graph.h"
#include "program/program.h"

namespace hocket::check {

struct Certificate {
  Hash128 program;    ///< program::program_hash
  Hash128 reference;  ///< reference_hash; zero: there was no graph to compare with
  Hash128 mesh;       ///< mesh_hash
  std::string ranks;  ///< ranks_in_words
  bool operator==(const Certificate&) const = default;
};

/// Returns the hash of the graph's text form and of the number of micro-batches.
Hash128 reference_hash(const graph::Graph& graph, int32_t num_micro_batches);
/// Returns the hash of the meshes of all roles.
Hash128 mesh_hash(const std::vector<program::Role>& roles);
/// Returns "pp 2 x edp 2 x ep 1"; for several roles, with names: "actor: .. + rollout: ..".
std::string ranks_in_words(const std::vector<program::Role>& roles);

/// Returns the hashes that differ: "the reference graph (ab.. is not cd..)"; "" if none.
std::string differences(const Certificate& certified, const Certificate& now);

/// Reads the certificate from the output of `hocket check --json`, or from the run.json of a
/// checkpoint. Throws Error if there is none.
Certificate parse_certificate(const JsonView& json);
Certificate read_certificate(const std::string& path);

}  // namespace hocket::check
