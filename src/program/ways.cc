// SPDX-License-Identifier: Apache-2.0
#include "program/ways.h"

namespace hocket::program {

int32_t Ways::number(RoleId role, const Way& way) {
  const auto [known, fresh] = known_.try_emplace({role, way}, kNone);
  if (fresh) {
    const int32_t first = program_.first_rank(role);
    std::vector<int32_t> peers;
    for (int32_t rank = 0; rank < program_.roles[role].mesh.size(); ++rank) {
      peers.push_back(program_.peer_of(way, first + rank) - first);
    }
    known->second = intern(role, std::move(peers));
  }
  return known->second;
}

int32_t Ways::back(int32_t number) {
  const auto [known, fresh] = back_.try_emplace(number, kNone);
  if (!fresh) return known->second;
  std::vector<int32_t> back(peers_[number]->size(), kNone);
  for (size_t rank = 0; rank < back.size(); ++rank) {
    int32_t& from = back[static_cast<size_t>((*peers_[number])[rank])];
    if (from != kNone) return kNone;
    from = static_cast<int32_t>(rank);
  }
  known->second = intern(roles_[number], std::move(back));
  return known->second;
}

int32_t Ways::intern(RoleId role, std::vector<int32_t> peers) {
  const auto [known, fresh] = numbers_.try_emplace({role, std::move(peers)}, std::ssize(peers_));
  if (fresh) {
    peers_.push_back(&known->first.second);
    roles_.push_back(role);
  }
  return known->second;
}

}  // namespace hocket::program
