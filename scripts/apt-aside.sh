# shellcheck shell=bash
# Sourced, not run: package sources of its own for one directory, so that what is asked of them changes
# nothing in this machine's package lists, and takes no root.

# apt_aside DIRECTORY SED: from here on apt-get and apt-cache keep their state in DIRECTORY, and their source
# is the distribution itself, the first stanza of its list, changed by the sed script. Fails where there is no
# such list.
apt_aside() {
    local sources=/etc/apt/sources.list.d/debian.sources
    [ -e "$sources" ] || { echo "no $sources to find packages by" >&2; return 1; }
    rm -rf "$1"
    mkdir -p "$1"/{lists/partial,cache/archives/partial,parts}
    cat > "$1/apt.conf" <<EOC
Dir::State "$1";
Dir::State::lists "$1/lists";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$1/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$1/parts";
APT::Sandbox::User "root";
Acquire::Retries "3";
EOC
    awk 'BEGIN { RS = "" } NR == 1' "$sources" | sed "$2" > "$1/parts/aside.sources"
    export APT_CONFIG=$1/apt.conf
}
