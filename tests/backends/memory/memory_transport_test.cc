#include "tests/backends/conformance/transport_conformance.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, TransportConformance,
                         testing::Values(TransportMaker{"memory", "memory", [](int size) {
                                                          return make_transports(
                                                              find_backend("memory"), size);
                                                        }}));

}  // namespace
}  // namespace tutti::test
