// SPDX-License-Identifier: Apache-2.0
// Typed ids of a measured run's tables.
#pragma once

#include "base/id.h"

namespace hocket::whatif {

/// A row of MeasuredRun::ops.
using OpId = Id<struct Op>;
/// A row of MeasuredRun::names.
using NameId = Id<struct OpName>;
/// A row of MeasuredRun::kinds.
using OpKindId = Id<struct OpKind>;
/// A row of MeasuredRun::blocks.
using BlockId = Id<struct Block>;
/// A row of MeasuredRun::groups.
using GroupId = Id<struct Group>;
/// A row of MeasuredRun::workers: a worker of the pattern in one replica.
using WorkerId = Id<struct Worker>;
/// A worker of the pattern: a pipeline rank, or a rank.
using PatternWorkerId = Id<struct PatternWorker>;
/// A replica of the pattern, below MeasuredRun::replicas.
using ReplicaId = Id<struct PatternReplica>;
/// A row of MeasuredRun::steps.
using StepIndex = Id<struct StepOfRun>;
/// A column of the table of times: a step and a replica.
using SampleId = Id<struct SampleOfRun>;
/// A pipeline rank (Worker::stage).
using StageId = Id<struct PipelineRank>;
/// A data-parallel rank (Worker::replica); a run with all ranks in its pattern has several, too.
using DataRank = Id<struct DataParallelRank>;

}  // namespace hocket::whatif
