#include "tests/backends/backend_conformance.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, BackendConformance,
                         testing::Values(BackendMaker{"memory", [](int size) {
                                                        return make_backends(
                                                            find_backend("memory"), size,
                                                            [](Context& context) {
                                                              context.executor.segment_bytes =
                                                                  kTestSegmentBytes;
                                                            });
                                                      }}));

}  // namespace
}  // namespace tutti::test
