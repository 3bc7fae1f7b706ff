#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tutti {

/// The user's settings for NCCL's communicators (TUTTI_NCCL_CONFIG). NCCL chooses every value that
/// is not set.
struct NcclSettings {
  std::optional<int> cga_cluster_size, min_ctas, max_ctas, split_share, traffic_class,
      collnet_enable, cta_policy, nvls_ctas, channels_per_net_peer, nvlink_centric_sched;
  std::string net_name;
};

/// Parses text such as "min_ctas=4,max_ctas=16,net_name=Socket". Throws Error(invalid_argument),
/// which names the wrong setting and says what was expected.
NcclSettings parse_nccl_settings(const std::string& text);

}  // namespace tutti
