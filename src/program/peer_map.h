// SPDX-License-Identifier: Apache-2.0
// Matching of messages: tasks' peer mappings as permutations of a role's ranks, so that both ends
// match whatever offsets and tables express them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Numbers the peer mappings of a program. Two mappings have one number exactly if they lead every
/// rank of a role to the same rank. The first query of a mapping is linear in the ranks of the
/// role. Requires: the program outlives this and does not change.
class PeerMaps {
 public:
  explicit PeerMaps(const Program& program) : program_(program) {}

  int32_t number(RoleId role, const PeerMap& peer_map);
  /// Returns the number of the inverse mapping; kNone if several ranks have one peer.
  int32_t inverse(int32_t number);
  /// Peer of each rank, both counted from the first rank of the role.
  std::span<const int32_t> peers(int32_t number) const { return *peers_[number]; }

 private:
  int32_t intern(RoleId role, std::vector<int32_t> peers);

  const Program& program_;
  std::map<std::pair<RoleId, PeerMap>, int32_t> known_;
  std::map<std::pair<RoleId, std::vector<int32_t>>, int32_t> numbers_;
  // By number.
  std::vector<const std::vector<int32_t>*> peers_;  ///< keys of numbers_
  std::vector<RoleId> roles_;
  std::map<int32_t, int32_t> inverse_;
};

}  // namespace hocket::program
