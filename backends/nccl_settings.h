#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti {

/// What users set of the communicators of NCCL (TUTTI_NCCL_CONFIG); the rest is left to NCCL.
struct NcclSettings {
  std::optional<int> cga_cluster_size, min_ctas, max_ctas, split_share, traffic_class,
      collnet_enable, cta_policy, nvls_ctas, channels_per_net_peer, nvlink_centric_sched;
  std::string net_name;
};

/// Reads "min_ctas=4,max_ctas=16,net_name=Socket". Throws Error(invalid_argument) that says which
/// of them is wrong and what was wanted.
NcclSettings parse_nccl_settings(const std::string& text);

}  // namespace tutti
