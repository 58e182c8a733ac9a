# Who executes how much of an add and a removal. Runs inside the virtual KVM host by
# its instruction clock; limits.md has the command and what came of it. A line for
# each step: LMB, guest block, step; then millions of instructions of lmb-vmm's vCPU
# thread, effect worker and event loop, and of the host's other threads (its kernel's
# and lmb); then the vCPU thread's ticks (10 ms, sampled) in the guest and in the
# host's kernel; then millions waited; then exits to user space.
export LMB_SOCKET=/tmp/vm.sock
amount=${1:-4G}

# "now vcpu effects loop others guest-ticks kernel-ticks", the first five in ns.
look() {
    v=0 e=0 m=0 o=0
    for task in /proc/$vmm/task/*; do
        read -r ns _ < $task/schedstat
        case $(cat $task/comm) in
        vcpu*) v=$ns stat=$task/stat ;;
        effects*) e=$ns ;;
        *) m=$((m + ns)) ;;
        esac
    done
    for other in /proc/[0-9]*; do
        [ $other = /proc/$vmm ] && continue
        read -r ns _ < $other/schedstat && o=$((o + ns))
    done 2>/dev/null
    # Behind the name in brackets stime is field 13 and guest time 41.
    set -- $(sed 's/.*) //' $stat)
    s=${13}
    shift 40
    read -r up _ < /proc/uptime
    echo ${up%.*}${up#*.}0000000 $v $e $m $o $1 $s
}
exits() {
    lmb vm show --json | sed -n 's/.*"vcpu_exits": *\([0-9]*\).*/\1/p'
}
step() {
    sleep 1
    x0=$(exits)
    before=$(look)
    lmb mem $1 $amount --timeout 10m >/dev/null 2>&1 || echo "failed: $1"
    after=$(look)
    x1=$(exits)
    echo "$lmb $block $1 $before $after $x0 $x1" | awk '{
        printf "%s\t%s\t%s", $1, $2, $3
        for (i = 5; i <= 8; i++) { printf "\t%.1f", ($(i + 7) - $i) / 1e6; sum += $(i + 7) - $i }
        for (i = 9; i <= 10; i++) printf "\t%d", $(i + 7) - $i
        printf "\t%.0f\t%d\n", ($11 - $4 - sum) / 1e6, $19 - $18
    }'
}
for sizes in "128M 128M" "512M 512M" "4G 2G" "128M 2G"; do
    set -- $sizes
    lmb=$1 block=$2
    lmb-vmm --kernel /guest/kernel --initrd /guest/initrd --memory 4G --max-memory 8G \
        --lmb-size $lmb --guest-block-size $block --serial off --api-socket $LMB_SOCKET &
    vmm=$!
    until lmb mem show --json 2>/dev/null | grep -q '"driver_active": true'; do sleep 2; done
    for one in add remove add; do step $one; done
    lmb vm power-off >/dev/null
    wait $vmm
done
