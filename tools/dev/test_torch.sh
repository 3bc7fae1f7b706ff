# ./dev test --torch; `test.sh` reads this.
. tools/dev/torch.sh

labels='^newest$'
[[ ${1-} != --smoke ]] || labels='^smoke$'
require_all build test
run_torch $reports/torch.xml "$torch_version" "$labels" "${every_day[@]}"
summarize $reports/torch.xml
