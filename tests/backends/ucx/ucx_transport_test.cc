#include "tests/backends/ucx/ucx_ends.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         testing::Values(ucx_ends("Default", "", "sysv, posix"),
                                         ucx_ends("Posix", "posix", "posix"),
                                         ucx_ends("Sysv", "sysv", "sysv"),
                                         ucx_ends("Tcp", "tcp", "tcp")),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
