// SPDX-License-Identifier: Apache-2.0
// Devices by name, with the figures of their datasheets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cost/cluster.h"

namespace hocket::cost {

/// Returns the model that a device's name has, in lower case: "h100" of "NVIDIA H100 80GB HBM3",
/// "4090" of "GeForce RTX 4090". Empty if the name has none.
std::string device_model(std::string_view name);

/// Returns a clause for every peak and bandwidth of a device that is more than 1.5 times off its
/// datasheet. Empty for devices that are not in the table.
std::vector<std::string> far_from_datasheet(const Device& device);

}  // namespace hocket::cost
