extern "C" int tutti_test_anything() { return 1; }
