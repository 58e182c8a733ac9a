# Which part of lmb-vmm executes how much of an add and a removal. Runs inside the
# virtual KVM host by its instruction clock; limits.md has the command and what came
# of it. A line for each step: LMB, guest block, step, then instructions (millions)
# of the vCPU thread, of the effect worker and of the event loop, then the vCPU
# thread's ticks (4 ms) in user mode and KVM, of them in the guest, and in the host's
# kernel (faults in guest memory), then exits to user space.
export LMB_SOCKET=/tmp/vm.sock
amount=${1:-4G}

# "vcpu-ns effects-ns main-ns vcpu-utime vcpu-guest vcpu-stime" of the VMM.
look() {
    v=0 e=0 m=0
    for task in /proc/$vmm/task/*; do
        read -r ns _ < $task/schedstat
        case $(cat $task/comm) in
        vcpu*) v=$ns; stat=$task/stat ;;
        effects*) e=$ns ;;
        *) m=$((m + ns)) ;;
        esac
    done
    # Behind the name in brackets: utime is field 12, stime 13, guest time 41.
    set -- $(sed 's/.*) //' $stat)
    u=${12} s=${13}
    shift 40
    echo $v $e $m $u $1 $s
}
exits() {
    lmb vm show --json | sed -n 's/.*"vcpu_exits": *\([0-9]*\).*/\1/p'
}
step() {
    sleep 1
    x0=$(exits)
    set -- $1 "$(look)"
    lmb mem $1 $amount --timeout 10m >/dev/null 2>&1 || echo "failed: $1"
    after=$(look)
    x1=$(exits)
    echo "$lmb $block $1 $2 $after $x0 $x1" | awk '{
        printf "%s\t%s\t%s", $1, $2, $3
        for (i = 4; i <= 6; i++) printf "\t%.1f", ($(i + 6) - $i) / 1e6
        for (i = 7; i <= 9; i++) printf "\t%d", $(i + 6) - $i
        printf "\t%d\n", $17 - $16
    }'
}
for sizes in "128M 128M" "4G 2G" "128M 2G"; do
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
