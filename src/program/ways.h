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

/// Numbers the ways of a program, which must outlive it and stay as it is. Two ways have one number
/// exactly if they lead every rank of a role to the same rank. Linear in the ranks of the role for
/// every way that was not asked for before.
class Ways {
 public:
  explicit Ways(const Program& program) : program_(program) {}

  int32_t number(RoleId role, const Way& way);
  /// The number of the way back; kNone if there is none, since several ranks have one peer.
  int32_t back(int32_t number);
  /// By rank: its peer, both counted from the first rank of the role.
  std::span<const int32_t> peers(int32_t number) const { return *peers_[number]; }

 private:
  int32_t intern(RoleId role, std::vector<int32_t> peers);

  const Program& program_;
  std::map<std::pair<RoleId, Way>, int32_t> known_;
  std::map<std::pair<RoleId, std::vector<int32_t>>, int32_t> numbers_;
  // By number.
  std::vector<const std::vector<int32_t>*> peers_;  ///< keys of numbers_
  std::vector<RoleId> roles_;
  std::map<int32_t, int32_t> back_;
};

}  // namespace hocket::program
