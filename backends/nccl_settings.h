#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti {

/// The settings of NCCL's communicators that users make (TUTTI_NCCL_CONFIG). NCCL chooses the rest.
struct NcclSettings {
  std::optional<int> cga_cluster_size, min_ctas, max_ctas, split_share, traffic_class,
      collnet_enable, cta_policy, nvls_ctas, channels_per_net_peer, nvlink_centric_sched;
  std::string net_name;
};

/// Reads "min_ctas=4,max_ctas=16,net_name=Socket". Throws Error(invalid_argument) that names the
/// wrong one and says what was expected.
NcclSettings parse_nccl_settings(const std::string& text);

}  // namespace tutti
