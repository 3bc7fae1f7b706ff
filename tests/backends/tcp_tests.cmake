tutti_test(tcp_handshake_test tcp_handshake_test.cc)
tutti_test(tcp_store_test tcp_store_test.cc)
tutti_test(tcp_channel_test tcp_channel_test.cc)
