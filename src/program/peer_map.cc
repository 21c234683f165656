// SPDX-License-Identifier: Apache-2.0
#include "program/peer_map.h"

namespace hocket::program {

int32_t PeerMaps::number(RoleId role, const PeerMap& peer_map) {
  const auto [known, fresh] = known_.try_emplace({role, peer_map}, kNone);
  if (fresh) {
    const int32_t first = program_.first_rank(role);
    std::vector<int32_t> peers;
    for (int32_t rank = 0; rank < program_.roles[role].mesh.size(); ++rank) {
      peers.push_back(program_.peer_of(peer_map, first + rank) - first);
    }
    known->second = intern(role, std::move(peers));
  }
  return known->second;
}

int32_t PeerMaps::inverse(int32_t number) {
  const auto [known, fresh] = inverse_.try_emplace(number, kNone);
  if (!fresh) return known->second;
  std::vector<int32_t> inverse(peers_[number]->size(), kNone);
  for (size_t rank = 0; rank < inverse.size(); ++rank) {
    int32_t& from = inverse[static_cast<size_t>((*peers_[number])[rank])];
    if (from != kNone) return kNone;
    from = static_cast<int32_t>(rank);
  }
  known->second = intern(roles_[number], std::move(inverse));
  return known->second;
}

int32_t PeerMaps::intern(RoleId role, std::vector<int32_t> peers) {
  const auto [known, fresh] = numbers_.try_emplace({role, std::move(peers)}, std::ssize(peers_));
  if (fresh) {
    peers_.push_back(&known->first.second);
    roles_.push_back(role);
  }
  return known->second;
}

}  // namespace hocket::program
