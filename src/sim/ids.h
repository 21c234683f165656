// SPDX-License-Identifier: Apache-2.0
// Typed ids of the replay's tables.
#pragma once

#include "base/id.h"

namespace hocket::sim {

/// A replayed rank: its index in Replay::ranks.
using RankIndex = Id<struct ReplayedRank>;
/// A link that transfers may have to share, as numbered by Contention::uses.
using SharedLinkId = Id<struct SharedLink>;
/// A task table: of a class of ranks on a device type, in Tables::classes.
using TableId = Id<struct ClassTable>;
/// A channel of collectives: a group used from a lane.
using CollectiveChannelId = Id<struct CollectiveChannel>;
/// A channel of messages: a link as its sender sees it, and a tag.
using MessageChannelId = Id<struct Channel>;
/// A link to a peer: a role, and the number of a peer mapping of its ranks.
using PeerLinkId = Id<struct PeerLink>;
/// Replayed ranks that execute the collectives of a group together, among those of the group.
using InstanceId = Id<struct Instance>;
/// A collective of a class, in ClassTable::collectives.
using CollectiveId = Id<struct CollectiveRecord>;
/// A send or a receive of a class, in ClassTable::p2p.
using P2pId = Id<struct P2pRecord>;
/// A receive of a class, among its receives.
using ReceiveId = Id<struct Receive>;
/// A shape of a group or of a pair of ranks, as Durations::shape_of numbers it.
using ShapeId = Id<struct GroupShapeNumber>;

}  // namespace hocket::sim
