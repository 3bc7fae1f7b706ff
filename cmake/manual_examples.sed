# help2man joins the lines of examples; each is a command of its own.
/^\.SH EXAMPLES/,/^\.S/ {
/^[a-z]/i\
.br
}
