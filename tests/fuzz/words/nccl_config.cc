// TUTTI_NCCL_CONFIG.

#include "tests/fuzz/harness.h"
#include "tutti/backends/nccl_settings.h"

namespace tutti::fuzz {
namespace {

bool parse_nccl_config(std::string_view input) {
  const auto settings = parse_nccl_settings(std::string(input));
  for (const auto& number :
       {settings.cga_cluster_size, settings.min_ctas, settings.max_ctas, settings.split_share,
        settings.traffic_class, settings.collnet_enable, settings.cta_policy, settings.nvls_ctas,
        settings.channels_per_net_peer, settings.nvlink_centric_sched})
    require(number.value_or(0) >= 0, "a negative setting of NCCL was taken");
  require(settings.net_name.find('\0') == std::string::npos, "NCCL would read half a name");
  return !input.empty();
}

std::vector<std::string> seeds_of_nccl_config() {
  return {"min_ctas=4,max_ctas=16,net_name=Socket",
          "cga_cluster_size=8,split_share=1,traffic_class=0",
          "collnet_enable=0,cta_policy=2,nvls_ctas=64",
          "channels_per_net_peer=1,nvlink_centric_sched=0"};
}

const Registered registered_nccl_config({.name = "nccl_config",
                                         .parse = parse_nccl_config,
                                         .seeds = seeds_of_nccl_config});

}  // namespace
}  // namespace tutti::fuzz
